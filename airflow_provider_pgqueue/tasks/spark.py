"""What a pipeline on Spark leaves to the DAG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgqueue.tasks.task import TaskArguments

if TYPE_CHECKING:
    from requests.auth import AuthBase


class SparkArguments(TaskArguments, total=False):
    """The arguments of `SparkSubmitOperator` that a pipeline leaves to the DAG."""

    archives: str | None
    conf: dict[Any, Any] | None
    conn_id: str
    deploy_mode: str | None
    driver_class_path: str | None
    driver_memory: str | None
    durable: bool | None
    env_vars: dict[str, Any] | None
    exclude_packages: str | None
    executor_cores: int | None
    executor_memory: str | None
    files: str | None
    jars: str | None
    keytab: str | None
    num_executors: int | None
    openlineage_inject_parent_job_info: bool
    openlineage_inject_transport_info: bool
    packages: str | None
    post_submit_commands: list[str] | None
    principal: str | None
    properties_file: str | None
    proxy_user: str | None
    py_files: str | None
    reconnect_on_retry: bool | None
    repositories: str | None
    spark_binary: str | None
    status_poll_interval: int
    total_executor_cores: int | None
    track_driver_via_k8s_api: bool
    use_krb5ccache: bool
    verbose: bool
    yarn_queue: str | None
    yarn_rm_auth: AuthBase | None
    yarn_track_via_rm_api: bool
