"""Makes a run whose thousand sensors are deferred, as if a thousand workers had done so."""

from __future__ import annotations

from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.trigger import Trigger
from airflow.utils import timezone
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from benchmarks.triggerer.triggers import RecordedTrigger


def main() -> None:
    with create_session() as session:
        dag = SerializedDagModel.get_dag("bench_sensors", session=session)
        if dag is None:
            raise RuntimeError("the DAG of the benchmark is not in the metadata")
        now = timezone.utcnow()
        run = dag.create_dagrun(
            run_id="bench",
            run_after=now,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        for ti in run.get_task_instances(session=session):
            queue_name = f"wait_{ti.map_index % 100}"
            classpath, arguments = RecordedTrigger(queue_name=queue_name, end_task=True, for_task=True).serialize()
            ti.trigger = Trigger(classpath=classpath, kwargs=arguments)
            ti.state, ti.start_date = TaskInstanceState.DEFERRED, now
            ti.next_method, ti.next_kwargs = "execute_complete", {}


if __name__ == "__main__":
    main()
