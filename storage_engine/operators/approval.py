"""Asks a second person to approve a run's plan, after archiving and before the release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCOM_RETURN_KEY, conf
from airflow.providers.standard.operators.hitl import ApprovalOperator

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.hooks.notifiers import metrics_sent, name_commands
from storage_engine.model.plan import Person, PlanQuestion, Realm, Reply, Said
from storage_engine.operators.base import StoreOperator, run_key
from storage_engine.task_log import quiet_libraries

if TYPE_CHECKING:
    from airflow.sdk import Context

RESPONSE_TIMEOUT = timedelta(hours=12)
_ANONYMOUS = "anonymous"
"""The name of every user if the simple auth manager makes all users admins."""


class StorageEngineApprovalOperator(StoreOperator, ApprovalOperator):
    """Waits until a second person approves the plan. Returns at once if the policy requires no approval.

    Only this task gets the answer from Airflow and records it in the journal. If the task is marked as
    success, cleared or skipped, there is no record, and the release refuses.

    Three results skip the tasks directly downstream: a rejection, an answer from a user who may not approve,
    and no answer in time. The report names the result, and fails.

    :param assigned_users: the users who may answer, each with the ``id`` and ``name`` of the auth manager, or
        None for every user who may answer tasks of the DAG.
    :param subject: subject of the question (templated), or "" for the store and the segments to delete.
    :param body: text of the question (templated). By default it has reasons, consumers' losses and proofs.
    """

    template_fields: Sequence[str] = ("storage_engine_conn_id", "subject", "body")
    ui_color = "#f3d9e2"

    def __init__(
        self,
        *,
        subject: str = "",
        body: str | None = None,
        response_timeout: timedelta | None = RESPONSE_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        defaults = {"defaults": ApprovalOperator.REJECT, **kwargs}
        super().__init__(subject=subject, body=body, response_timeout=response_timeout, **defaults)

    def do_step(self, context: Context) -> Any:
        from storage_engine.retention.proof.approvals import (
            read_consent,
            record_question,
            require_consent,
            starters_of,
        )
        from storage_engine.retention.report.report import read_report
        from storage_engine.retention.report.report_text import question_body, question_subject
        from storage_engine.retention.store.context import approved_plan, opened

        with opened(self.store) as store:
            run = store.run(run_key(context))
            plan = approved_plan(run)
            consent = read_consent(store, run, plan.decisions)
            if not consent.refuses:
                self.say([f"no person is asked: {consent.approval or 'the policy requires no approval'}"])
                return None
            if not starters_of(store.journal, run):
                require_consent(store, run, consent)
            report = read_report(store, run)
            # If Airflow's settings name no address, the link is relative.
            address = conf.get("api", "base_url", fallback="") or "/"
            link = self.generate_link_to_ui_from_context(context=context, base_url=address)
            self.subject = self.subject or question_subject(report)
            self.body = self.body or question_body(report, consent.why, link)
            now_ms, wait = clock_ms(), self.response_timeout
            until_ms = None if wait is None else now_ms + int(wait.total_seconds() * 1000)
            question = PlanQuestion(plan.digest, consent.why, now_ms, until_ms, link)
            record_question(store.journal, run, question)
        self.say([f"a second person is asked: {consent.why}; {link}"])
        return ApprovalOperator.execute(self, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        quiet_libraries()
        if "error" in event:
            return super().execute_complete(context, event)
        conn_id = self.storage_engine_conn_id
        with metrics_sent(conn_id), name_commands(conn_id):
            reply = self._record_reply(context, event)
        self.say([f"{reply.said.value}: {reply.person.text if reply.person else 'nobody'} {reply.detail}"])
        context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=to_jsonable(reply))
        if reply.said is Said.APPROVED:
            super().execute_complete(context, event)
        else:
            super().execute_complete(context, {**event, "chosen_options": [self.REJECT]})
        return to_jsonable(reply)

    def _record_reply(self, context: Context, event: Mapping[str, Any]) -> Reply:
        from storage_engine.retention.proof.approvals import record_reply
        from storage_engine.retention.store.context import opened

        user = event.get("responded_by_user")
        person = Person(Realm.AIRFLOW, str(user["name"] or ""), user_id=str(user["id"])) if user else None
        with opened(self.store) as store:
            return record_reply(
                store.journal,
                store.run(run_key(context)),
                person,
                approves=list(event.get("chosen_options") or ()) == [self.APPROVE],
                at_ms=_ms(event.get("responded_at")),
                fault=self._fault(person),
            )

    def _fault(self, person: Person | None) -> str:
        """Return why a user's approval can't be accepted, by Airflow's facts about users, or "" if it can."""
        if person is None:
            return "nobody answered"
        everybody = conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False)
        if everybody or person.name.casefold() == _ANONYMOUS:
            return "all users of this Airflow are one admin, so the user may not be a second person"
        # The present list counts: a user may have been removed since the question was asked.
        if self.assigned_users and person.user_id not in {str(user["id"]) for user in self.assigned_users}:
            return f"{person.name} isn't on the list of the store's approvers"
        return ""


def _ms(moment: datetime | str | None) -> int:
    """Return the time of the answer; the present time if Airflow doesn't name it."""
    if moment is None:
        return clock_ms()
    instant = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return round(instant.timestamp() * 1000)
