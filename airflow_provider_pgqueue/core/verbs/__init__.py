"""One value per verb of the queue: which function, which arguments, what comes back.

A statement knows no connection. `client.run` and `client.run_async` run it, so each verb is written once. The shelves
are those of sql/functions.
"""

from airflow_provider_pgqueue.core.client import (
    Statement,
)
from airflow_provider_pgqueue.core.verbs.archive import (
    search_archive,
)
from airflow_provider_pgqueue.core.verbs.dead import (
    count_remedies,
    dead_causes,
    dead_ids,
    dead_queues,
    dismiss,
    extend_dead,
    lease_dead,
    release_dead,
    remedies,
    requeue,
    requeue_dead,
    requeued_results,
)
from airflow_provider_pgqueue.core.verbs.health import (
    health,
)
from airflow_provider_pgqueue.core.verbs.lease import (
    archive,
    consume,
    end_named_leases,
    extend,
    lease,
    lease_named,
    once,
    release,
    release_held_by,
)
from airflow_provider_pgqueue.core.verbs.log import (
    archive_log_end,
    split_archive_log,
)
from airflow_provider_pgqueue.core.verbs.partitions import (
    archive_checksums,
    archive_partitions,
    closed_archive_partitions,
    drop_archive_partition,
    partition_archive,
)
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
    closed_queues,
    create_queue,
    drop_queue,
    lease_policy,
    pause_queue,
    purge_queue,
    ready_queues,
    resume_queue,
    status,
)
from airflow_provider_pgqueue.core.verbs.roles import (
    grant_queue,
    queue_grants,
    revoke_queue,
)
from airflow_provider_pgqueue.core.verbs.runs import (
    begin_run,
    check_queues_exist,
    finish_run,
    replay,
    run_archived,
    run_backlog,
    run_holder,
    run_summary,
)
from airflow_provider_pgqueue.core.verbs.schedules import (
    pause_schedule,
    resume_schedule,
    run_schedules,
    schedule,
    schedules,
    unschedule,
)
from airflow_provider_pgqueue.core.verbs.stages import (
    begin_partitions,
    drop_stage,
    finish_partitions,
    publish_partition,
    publish_staged,
    stage_publish,
)
from airflow_provider_pgqueue.core.verbs.topics import (
    TopicOptions,
    bind_topic,
    publish_topic,
    route_topic,
    unbind_topic,
)
from airflow_provider_pgqueue.core.verbs.traffic import (
    record_traffic,
    record_triage_causes,
    traffic_report,
    traffic_windows,
    triage_causes,
)
from airflow_provider_pgqueue.core.verbs.upkeep import (
    install_cron,
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
    "archive_checksums",
    "archive_log_end",
    "archive_partitions",
    "begin_partitions",
    "begin_run",
    "bind_topic",
    "check_queues_exist",
    "closed_archive_partitions",
    "closed_queues",
    "consume",
    "count_remedies",
    "create_queue",
    "dead_causes",
    "dead_ids",
    "dead_queues",
    "dismiss",
    "drop_archive_partition",
    "drop_queue",
    "drop_stage",
    "end_named_leases",
    "extend",
    "extend_dead",
    "finish_partitions",
    "finish_run",
    "grant_queue",
    "health",
    "install_cron",
    "lease",
    "lease_dead",
    "lease_named",
    "lease_policy",
    "once",
    "partition_archive",
    "pause_queue",
    "pause_schedule",
    "publish",
    "publish_batch",
    "publish_partition",
    "publish_staged",
    "publish_texts",
    "publish_topic",
    "purge_queue",
    "queue_grants",
    "ready_queues",
    "record_traffic",
    "record_triage_causes",
    "release",
    "release_dead",
    "release_held_by",
    "remedies",
    "replay",
    "requeue",
    "requeue_dead",
    "requeued_results",
    "resume_queue",
    "resume_schedule",
    "revoke_queue",
    "route_topic",
    "run_archived",
    "run_backlog",
    "run_holder",
    "run_schedules",
    "run_summary",
    "schedule",
    "schedules",
    "search_archive",
    "split_archive_log",
    "stage_publish",
    "status",
    "traffic_report",
    "traffic_windows",
    "triage_causes",
    "unbind_topic",
    "uninstall_cron",
    "unschedule",
    "upkeep",
    "upkeep_mode",
]
