"""One value per verb of the queue: which function, which arguments, what comes back.

A statement knows no connection. `client.run` and `client.run_async` run it, so each verb is written once.
"""

from airflow_provider_pgqueue.core.verbs.archive import partition_archive, search_archive
from airflow_provider_pgqueue.core.verbs.dead import (
    dead_causes,
    dead_ids,
    dismiss,
    extend_dead,
    lease_dead,
    release_dead,
    requeue,
    requeue_dead,
)
from airflow_provider_pgqueue.core.verbs.leases import archive, consume, extend, lease, once, release
from airflow_provider_pgqueue.core.verbs.publish import (
    BatchOptions,
    Options,
    publish,
    publish_batch,
    publish_texts,
)
from airflow_provider_pgqueue.core.verbs.queues import (
    Policy,
    alter_queue,
    create_queue,
    drop_queue,
    grant_queue,
    pause_queue,
    purge_queue,
    resume_queue,
    revoke_queue,
    status,
)
from airflow_provider_pgqueue.core.verbs.schedules import (
    pause_schedule,
    resume_schedule,
    run_schedules,
    schedule,
    schedules,
    unschedule,
)
from airflow_provider_pgqueue.core.verbs.statement import Statement
from airflow_provider_pgqueue.core.verbs.topics import (
    TopicOptions,
    bind_topic,
    publish_topic,
    route_topic,
    unbind_topic,
)
from airflow_provider_pgqueue.core.verbs.upkeep import (
    dead_queues,
    health,
    install_cron,
    ready_queues,
    uninstall_cron,
    upkeep,
    upkeep_mode,
)

__all__ = [
    "BatchOptions",
    "Options",
    "Policy",
    "Statement",
    "TopicOptions",
    "alter_queue",
    "archive",
    "bind_topic",
    "consume",
    "create_queue",
    "dead_causes",
    "dead_ids",
    "dead_queues",
    "dismiss",
    "drop_queue",
    "extend",
    "extend_dead",
    "grant_queue",
    "health",
    "install_cron",
    "lease",
    "lease_dead",
    "once",
    "partition_archive",
    "pause_queue",
    "pause_schedule",
    "publish",
    "publish_batch",
    "publish_texts",
    "publish_topic",
    "purge_queue",
    "ready_queues",
    "release",
    "release_dead",
    "requeue",
    "requeue_dead",
    "resume_queue",
    "resume_schedule",
    "revoke_queue",
    "route_topic",
    "run_schedules",
    "schedule",
    "schedules",
    "search_archive",
    "status",
    "unbind_topic",
    "uninstall_cron",
    "unschedule",
    "upkeep",
    "upkeep_mode",
]
