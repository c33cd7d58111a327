"""Runs a real Airflow: api-server, scheduler, triggerer and dag-processor, each in a session of its own."""

from __future__ import annotations

import argparse
import base64
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psycopg

from tools import AIRFLOW_DATABASE, QUEUE_DATABASE, ROOT, STATE, SetupError, processes
from tools.airflow_client import AirflowClient
from tools.ports import free_port, is_free
from tools.postgres import Cluster, demo_cluster

# Without --skip-serve-logs the scheduler and the triggerer open log servers on all addresses.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "triggerer": ("--skip-serve-logs",),
    "dag-processor": (),
}
UI_PORT: Final = 8080


class Stack:
    """One Airflow with the LocalExecutor, everybody an admin, reachable from this machine only.

    Starting a running stack starts the missing components; stopping leaves no process of it, even of other starters.

    :param directory: Airflow's home, logs and pid files go there.
    :param metadata: the URI of an empty or an Airflow database (postgresql://…).
    :param dags: the folder of the DAG files.
    :param parallelism: the number of tasks that run at once.
    :param environment: further variables for all components, such as AIRFLOW_CONN_PGQUEUE_DEFAULT.
    :param environment_of: further variables for single components, by their names.
    :param preferred_port: taken for the API and the UI if it is free at the first start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata: str,
        dags: Path,
        parallelism: int = 6,
        environment: Mapping[str, str] | None = None,
        environment_of: Mapping[str, Mapping[str, str]] | None = None,
        preferred_port: int = 0,
    ) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.logs = directory / "logs"
        self.metadata = metadata
        self.dags = dags
        self.parallelism = parallelism
        self.environment = dict(environment or {})
        self.environment_of = environment_of or {}
        self.preferred_port = preferred_port
        self._client: AirflowClient | None = None

    @property
    def url(self) -> str:
        """The address of the API and of the UI."""
        return f"http://127.0.0.1:{(self.directory / 'port').read_text()}"

    @property
    def client(self) -> AirflowClient:
        """A client of the REST API; the same one, which has logged in, until the port is another."""
        if self._client is None or self._client.url != self.url:
            self._client = AirflowClient(self.url)
        return self._client

    def env(self) -> dict[str, str]:
        """Return the environment of all components: ours without any Airflow setting, then the stack's."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW_")}
        return inherited | self._settings() | self._secrets() | self.environment

    def start(self, timeout: float = 120.0) -> None:
        """Start what does not run yet, migrating the metadata if needed, and wait until all is healthy.

        A component that ends meanwhile is started again, as a service manager would: a component that lost its database
        ends some seconds later. A component that is unhealthy after `timeout` seconds is killed and gets as long again.
        """
        began_at = datetime.now(UTC)
        running = self.prepare()
        since = began_at if len(running) < len(COMMANDS) else None
        try:
            self.client.wait_healthy(timeout, since=since, before=self.start_components)
        except TimeoutError:
            # A scheduler that lost its database waits for its last task, however long, and does nothing else.
            self._kill_silent()
            self.client.wait_healthy(timeout, since=since, before=self.start_components)

    def prepare(self) -> list[str]:
        """Migrate the metadata if needed, so that components can be started, and return those that run."""
        self.logs.mkdir(parents=True, exist_ok=True)
        running = self.running()
        if not running:
            self._choose_port()
        self._migrate()
        return running

    def stop(self, patience: float = 15.0) -> None:
        """Stop everything: TERM to all, KILL to those that are left after `patience` seconds.

        The API server goes last, because the others report to it how they ended. A running task is killed:
        Airflow's task process takes a TERM as a call of `on_kill`, not as its end.
        """
        processes.end(lambda: self.processes() - self.component_processes("api-server"), patience=patience)
        processes.end(self.processes, patience=patience)
        for component in COMMANDS:
            self._pid_file(component).unlink(missing_ok=True)

    def processes(self) -> set[int]:
        """Return all living processes of this stack: components, their children, running tasks."""
        return self._ours()

    def running(self) -> list[str]:
        """Return the components that run: a child that outlived its component is none."""
        return [component for component in COMMANDS if self._pids(component)[1] in self.component_processes(component)]

    def component_processes(self, component: str) -> set[int]:
        """Return the living processes of one component, also children that outlived it."""
        return self._ours(among=processes.in_session(self._pids(component)[0]))

    def start_component(self, component: str) -> None:
        """Start one component unless it runs, without what is left of the one before; does not wait for its health."""
        left = self.component_processes(component)
        if self._pids(component)[1] in left:
            return
        processes.end(lambda: self.component_processes(component), patience=0)
        with (self.logs / f"{component}.log").open("ab") as log:
            # A shell in between, so that the component is not our child and leaves us no zombie.
            command = [_program(), component, *COMMANDS[component]]
            shell = subprocess.Popen(
                ["sh", "-c", '"$@" & echo $$ $! >"$0"', str(self._pid_file(component)), *command],
                env=self.env() | dict(self.environment_of.get(component, {})),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            shell.wait()

    def start_components(self) -> None:
        """Start those that do not run; does not wait until they are healthy."""
        for component in COMMANDS:
            self.start_component(component)

    def kill(self, component: str, signal_number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, by default KILL, to all processes of one component."""
        processes.send(self.component_processes(component), signal_number)

    def restart(self, component: str) -> None:
        """Kill one component, start it again and wait until all is healthy, as `start` does."""
        processes.end(lambda: self.component_processes(component), patience=0)
        self.start()

    def _ours(self, among: Collection[int] | None = None) -> set[int]:
        return processes.with_environment("AIRFLOW_HOME", str(self.home), among=among)

    def _kill_silent(self) -> None:
        health = self.client.health()
        for component in COMMANDS:
            state = health.get(component.replace("-", "_")) or {}
            if state.get("status") != "healthy" and not (health and component == "api-server"):
                self.kill(component)

    def _settings(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "NO_PROXY": "127.0.0.1,localhost",
            # Or the process titles would overwrite the environment, by which we know our processes.
            "SPT_NOENV": "1",
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2]"}',
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.url.rpartition(":")[2],
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": str(self.parallelism),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            # Done by `_migrate`. Each component would import Alembic to look again, for a second.
            "AIRFLOW__DATABASE__CHECK_MIGRATIONS": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.metadata.replace("postgresql:", "postgresql+psycopg2:", 1),
        }

    def _secrets(self) -> dict[str, str]:
        """Return the keys of this stack, which stay the same so that stored connections stay readable."""
        file = self.directory / "secrets.env"
        if not file.exists():
            keys = {
                "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
                "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
            }
            file.touch(mode=0o600)
            file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        lines = file.read_text().splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def _choose_port(self) -> None:
        file = self.directory / "port"
        if not file.exists() or not is_free(int(file.read_text())):
            file.write_text(str(free_port(self.preferred_port)))

    def _migrate(self) -> None:
        """Migrate the metadata, which takes seconds even if there is nothing to do, once for each version."""
        stamp = self.directory / "migrated"
        if (seen := self._revision()) and stamp.exists() and stamp.read_text() == seen:
            return
        log = self.logs / "migrate.log"
        with log.open("wb") as output:
            command = [_program(), "db", "migrate"]
            done = subprocess.run(command, env=self.env(), cwd=self.directory, stdout=output, stderr=output)
        if done.returncode:
            raise SetupError(f"airflow db migrate failed; see {log}")
        stamp.write_text(self._revision())

    def _revision(self) -> str:
        with psycopg.connect(self.metadata, autocommit=True) as conn:
            if not conn.execute("SELECT FROM pg_tables WHERE tablename = 'alembic_version'").rowcount:
                return ""
            row = conn.execute("SELECT version_num FROM alembic_version").fetchone()
        return f"{version('apache-airflow')} {row and row[0]}"

    def _pid_file(self, component: str) -> Path:
        return self.directory / f"{component}.pid"

    def _pids(self, component: str) -> tuple[int, int]:
        """Return the session of a component and its first process; zeros for one that was never started."""
        with suppress(FileNotFoundError, ValueError):
            session, first = self._pid_file(component).read_text().split()
            return int(session), int(first)
        return 0, 0


def demo_stack(cluster: Cluster) -> Stack:
    """Return the Airflow of `make demo` and `make up`, on a running cluster."""
    return Stack(
        STATE / cluster.binaries.kind / "airflow",
        metadata=cluster.create_database(AIRFLOW_DATABASE),
        dags=ROOT / "dags_examples",
        environment={"AIRFLOW_CONN_PGQUEUE_DEFAULT": cluster.create_database(QUEUE_DATABASE)},
        preferred_port=UI_PORT,
    )


def stop_demo_stacks() -> None:
    """Stop every Airflow that `demo_stack` may have started, whether or not its cluster runs."""
    for kind in ("debian", "embedded"):
        Stack(STATE / kind / "airflow", metadata="", dags=ROOT).stop()


def _start_all(cluster: Cluster) -> Stack:
    try:
        cluster.start()
        print("Starting Airflow …", flush=True)
        stack = demo_stack(cluster)
        stack.start()
        return stack
    except BaseException:
        stop_demo_stacks()
        cluster.stop()
        raise


def without_queue(dsn: str) -> str | None:
    """Return what to do first if the database has no queue yet."""
    with psycopg.connect(dsn) as conn:
        if conn.execute("SELECT FROM pg_namespace WHERE nspname = 'messages'").rowcount:
            return None
    return "There is no queue yet: trigger the DAG pgqueue_setup, or run `make demo`."


def _program() -> str:
    return str(Path(sys.executable).with_name("airflow"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.airflow", description=__doc__)
    parser.add_argument("action", choices=["start", "stop"])
    if parser.parse_args().action == "stop":
        stop_demo_stacks()
        return
    cluster = demo_cluster()
    stack = _start_all(cluster)
    print(f"Airflow:    {stack.url}")
    print(f"Queues:     {stack.url}/plugin/queues")
    print(f"PostgreSQL: {cluster.dsn(QUEUE_DATABASE)}")
    print(f"Logs:       {stack.logs}")
    if said := without_queue(cluster.dsn(QUEUE_DATABASE)):
        print(said)


if __name__ == "__main__":
    try:
        main()
    except (SetupError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
