"""One value per verb of the queue: which function, which arguments, what comes back.

A statement knows no connection. `client.run` and `client.run_async` run it, so each verb is written once. Each module
has verbs of one chapter of sql/chapters. What is imported `as` its own name is what type checkers let others use.
"""
# ruff: isort: skip_file

from airflow_provider_pgqueue.core.statement import (
    Statement as Statement,
)
from airflow_provider_pgqueue.core.verbs.archive import (
    message_outcomes as message_outcomes,
    outcome_counts as outcome_counts,
    search_messages as search_messages,
)
from airflow_provider_pgqueue.core.verbs.audit import (
    act_for as act_for,
    audit_log as audit_log,
    publish_test as publish_test,
)
from airflow_provider_pgqueue.core.verbs.dead import (
    DeadFilter as DeadFilter,
    count_resolutions as count_resolutions,
    dead_causes as dead_causes,
    dead_ids as dead_ids,
    dead_queues as dead_queues,
    dead_trend as dead_trend,
    dismiss as dismiss,
    dismiss_dead as dismiss_dead,
    extend_dead as extend_dead,
    lease_dead as lease_dead,
    release_dead as release_dead,
    resolutions as resolutions,
    requeue as requeue,
    requeue_dead as requeue_dead,
    requeued_results as requeued_results,
    retried_causes as retried_causes,
)
from airflow_provider_pgqueue.core.verbs.dispatch import (
    dispatch_messages as dispatch_messages,
    dispatched_messages as dispatched_messages,
    end_dispatch as end_dispatch,
    extend_dispatches as extend_dispatches,
    open_dispatches as open_dispatches,
    overdue_dispatches as overdue_dispatches,
    record_task_failure as record_task_failure,
    start_dispatch as start_dispatch,
)
from airflow_provider_pgqueue.core.verbs.health import (
    health as health,
    metrics as metrics,
)
from airflow_provider_pgqueue.core.verbs.history import (
    alter_history as alter_history,
    message_life as message_life,
    queue_history as queue_history,
    queue_rates as queue_rates,
    queue_sparklines as queue_sparklines,
)
from airflow_provider_pgqueue.core.verbs.lease import (
    abandoned as abandoned,
    archive as archive,
    cancel as cancel,
    consume as consume,
    deaths as deaths,
    extend as extend,
    lease as lease,
    once as once,
    release as release,
    release_messages as release_messages,
    workers as workers,
)
from airflow_provider_pgqueue.core.verbs.log import (
    archive_log_end as archive_log_end,
    split_archive_log as split_archive_log,
)
from airflow_provider_pgqueue.core.verbs.partitions import (
    archive_checksums as archive_checksums,
    archive_partitions as archive_partitions,
    closed_archive_partitions as closed_archive_partitions,
    drop_archive_partition as drop_archive_partition,
    partition_archive as partition_archive,
)
from airflow_provider_pgqueue.core.verbs.publish import (
    BatchOptions as BatchOptions,
    Options as Options,
    TopicOptions as TopicOptions,
    publish as publish,
    publish_batch as publish_batch,
    publish_texts as publish_texts,
)
from airflow_provider_pgqueue.core.verbs.queues import (
    Policy as Policy,
    alter_queue as alter_queue,
    closed_queues as closed_queues,
    create_queue as create_queue,
    drop_queue as drop_queue,
    lease_policy as lease_policy,
    pause_queue as pause_queue,
    purge_queue as purge_queue,
    ready_queues as ready_queues,
    resume_queue as resume_queue,
    scan as scan,
    status as status,
)
from airflow_provider_pgqueue.core.verbs.roles import (
    grant_queue as grant_queue,
    queue_grants as queue_grants,
    revoke_queue as revoke_queue,
)
from airflow_provider_pgqueue.core.verbs.runs import (
    begin_run as begin_run,
    finish_run as finish_run,
    run_archived as run_archived,
    run_backlog as run_backlog,
    run_holder as run_holder,
    run_summary as run_summary,
)
from airflow_provider_pgqueue.core.verbs.stages import (
    drop_stage as drop_stage,
    publish_staged as publish_staged,
    stage_publish as stage_publish,
)
from airflow_provider_pgqueue.core.verbs.topics import (
    bind_topic as bind_topic,
    publish_topic as publish_topic,
    route_topic as route_topic,
    unbind_topic as unbind_topic,
)
from airflow_provider_pgqueue.core.verbs.maintenance import (
    install_cron as install_cron,
    scan_next as scan_next,
    uninstall_cron as uninstall_cron,
    maintain as maintain,
    maintenance_mode as maintenance_mode,
)
