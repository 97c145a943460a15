"""The grammar of materialized views: their clauses, schedules, policies, and changes."""

from __future__ import annotations

import itertools

from sqlext.errors import Position, SyntaxProblem, UnsupportedError, did_you_mean
from sqlext.options import ValueText
from sqlext.plan.job_graph import TableDefinition
from sqlext.plan.view_spec import RefreshPolicy
from sqlext.sql.cursor import unquoted
from sqlext.sql.statements import AlterMaterializedView, CreateMaterializedView, ScheduleClause
from sqlext.sql.table_grammar import TableCursor
from sqlext.sql.tokens import end_of_stream_at, is_stream_relation, our_hints

_MORE_CLAUSES = ("SCHEDULE", "TRIGGER ON UPDATE", "REFRESH POLICY")
_UNITS = tuple("SECOND SECONDS SEC MINUTE MINUTES MIN HOUR HOURS DAY DAYS WEEK WEEKS".split())
_BEGIN_A_QUERY = frozenset("SELECT WITH FROM VALUES TABLE MAP REDUCE (".split())


class ViewCursor(TableCursor):
    """A cursor that reads what stands behind MATERIALIZED VIEW in CREATE and ALTER."""

    def _create_view(self, refresh: bool, replace: bool, position: Position) -> CreateMaterializedView:
        if refresh:
            raise UnsupportedError(
                "CREATE OR REFRESH MATERIALIZED VIEW is a statement of pipelines. Use CREATE MATERIALIZED VIEW IF NOT EXISTS, "
                "and REFRESH MATERIALIZED VIEW.",
                Position.of(self._text, position.start, self._tokens[self._at - 1].stop),
            )
        self._kind = "materialized view"
        place = self._position()
        exists = self._take("IF", "NOT", "EXISTS")
        if exists and replace:
            raise SyntaxProblem("OR REPLACE and IF NOT EXISTS exclude each other. Leave one of them out.", place)
        name = self._name()
        definition, schedule, policy = self._view_definition()
        return CreateMaterializedView(name, self._view_query(), definition, schedule, policy, replace, exists, position)

    def _view_definition(self) -> tuple[TableDefinition, ScheduleClause, RefreshPolicy]:
        """Read the column list and the clauses, up to AS and with it."""
        columns, properties = self._table_columns() if self._word() == "(" else ((), {})
        clauses: list[str] = []
        schedule, policy = ScheduleClause(), RefreshPolicy.AUTO
        given: set[str] = set()
        while not self._take("AS"):
            self._refuse_second(given)
            if self._take("TBLPROPERTIES"):
                properties.update(self._table_properties())
            elif self._word() in ("SCHEDULE", "TRIGGER"):
                schedule = self._schedule()
            elif self._take("REFRESH", "POLICY"):
                policy = self._policy()
            elif clause := self._table_clause(_MORE_CLAUSES):
                clauses.append(clause)
        return TableDefinition(tuple(clauses), properties, columns), schedule, policy

    def _refuse_second(self, given: set[str]) -> None:
        """Refuse a clause that is given for the second time; `given` has the first words of the clauses before it."""
        word = self._word()
        if word in given:
            raise SyntaxProblem(f"The clause {word} is given twice.", self._position())
        given.add(word)
        if given >= {"SCHEDULE", "TRIGGER"}:
            raise SyntaxProblem("SCHEDULE and TRIGGER ON UPDATE exclude each other. Leave one of them out.", self._position())

    def _schedule(self) -> ScheduleClause:
        """Read SCHEDULE [REFRESH] EVERY duration, or TRIGGER ON UPDATE [AT MOST EVERY duration]."""
        if self._take("SCHEDULE"):
            self._take("REFRESH")
            if self._word() == "CRON":
                raise UnsupportedError(
                    "SCHEDULE CRON is not supported. Use SCHEDULE EVERY and a duration, such as SCHEDULE EVERY 1 HOUR.",
                    self._position(),
                )
            self._expect("EVERY")
            return ScheduleClause(every=self._duration())
        self._expect("TRIGGER")
        self._expect("ON")
        self._expect("UPDATE")
        if not self._take("AT"):
            return ScheduleClause(on_update=True)
        self._expect("MOST")
        self._expect("EVERY")
        return ScheduleClause(on_update=True, at_most_every=self._duration())

    def _duration(self) -> ValueText:
        """Read `10 MINUTES`, `1 HOUR 30 MINUTES`, `INTERVAL 1 MINUTE` or `'2 min'`; Spark's parser reads its value later."""
        self._take("INTERVAL")
        start = self._at
        parts: list[str] = []
        while (token := self._peek()) and (token.kind == "text" or token.text.isdecimal()):
            self._at += 1
            parts.append(unquoted(token.text))
            if token.kind == "text" and self._word() not in _UNITS:
                break  # the unit is in it
            parts.append(self._unit())
        if not parts:
            raise self._problem("Expected a duration, such as 10 MINUTES")
        first, last = self._tokens[start], self._tokens[self._at - 1]
        return ValueText(" ".join(parts), Position.of(self._text, first.start, last.stop))

    def _unit(self) -> str:
        word = self._word()
        if word not in _UNITS:
            raise self._problem("Expected SECONDS, MINUTES, HOURS, DAYS or WEEKS", did_you_mean(word, _UNITS))
        self._at += 1
        return word

    def _policy(self) -> RefreshPolicy:
        """Read AUTO, INCREMENTAL [STRICT] or FULL."""
        if self._take("INCREMENTAL"):
            return RefreshPolicy.STRICT if self._take("STRICT") else RefreshPolicy.INCREMENTAL
        found = next((policy for policy in (RefreshPolicy.AUTO, RefreshPolicy.FULL) if self._take(policy)), None)
        if found is None:
            raise self._problem(
                "Expected AUTO, INCREMENTAL, INCREMENTAL STRICT or FULL", did_you_mean(self._word(), RefreshPolicy)
            )
        return found

    def _view_query(self) -> str:
        """Read the rest of the statement, a query for Spark; return the statement with everything else blanked out."""
        token = self._peek()
        if token is None or not self._is_query():
            raise self._problem("Expected a query")
        self._refuse_streams()
        return self._blank()[: token.start] + self._text[token.start : self._tokens[-1].stop]

    def _is_query(self) -> bool:
        """Return whether the rest of the statement is a query: WITH and FROM may begin INSERT, UPDATE, DELETE and MERGE too."""
        words = self._outer_words()
        if words[0] == "WITH":
            closed = (at for at, word in enumerate(words[:-1], 1) if word == ")" and words[at] not in (",", "AS", "MAX"))
            words = words[next(closed, 0) :]
        is_insert = words[0] == "FROM" and any(
            word == "INSERT" and after in ("INTO", "OVERWRITE") for word, after in itertools.pairwise(words)
        )
        return words[0] in _BEGIN_A_QUERY and not is_insert

    def _outer_words(self) -> list[str]:
        """Return the words and symbols of the rest of the statement that are in no brackets, and these brackets."""
        depth, words = 0, []
        for token in self._tokens[self._at :]:
            depth -= token.text == ")"
            if depth <= 0:
                words.append(token.upper or token.text)
            depth += token.text == "("
        return words

    def _refuse_streams(self) -> None:
        """Refuse what only the queries of flows and jobs have: STREAM, GLOBAL WINDOW END OF STREAM, and hints of sqlext."""
        found = self._tokens[self._at :]
        clause = end_of_stream_at(found)
        if clause is not None:
            self._refuse("GLOBAL WINDOW END OF STREAM has no meaning in it", clause, clause + 4)
        for at, token in enumerate(found):
            if is_stream_relation(found, at):
                self._refuse("STREAM has no meaning in it", at, at)
            if names := our_hints(token):
                self._refuse(f"the hint {min(names)} has no meaning in it", at, at)

    def _refuse(self, what: str, first: int, last: int) -> None:
        """Raise an error about the tokens from `first` to `last` of the rest of the statement."""
        start, stop = self._tokens[self._at + first].start, self._tokens[self._at + last].stop
        raise UnsupportedError(
            f"A materialized view reads tables, so {what}. Leave it out, or use CREATE STREAMING TABLE, which reads streams.",
            Position.of(self._text, start, stop),
        )

    def _alter_view(self) -> AlterMaterializedView:
        self._kind = "materialized view"
        text, position = self._as_alter_table(), self._position()
        name = self._name()
        if self._take("SET", "REFRESH"):
            self._expect("POLICY")
            return self._end(AlterMaterializedView(name, policy=self._policy(), position=position))
        if self._take("DROP", "SCHEDULE") or self._take("DROP", "TRIGGER"):
            return self._end(AlterMaterializedView(name, ScheduleClause(), position=position))
        if self._word() in ("ADD", "ALTER") and self._changes_schedule():
            self._at += 1
            return self._end(AlterMaterializedView(name, self._schedule(), position=position))
        settings = self._table_change()
        return AlterMaterializedView(name, text=text, position=position, settings=settings)

    def _changes_schedule(self) -> bool:
        """Return whether a schedule follows ADD or ALTER; SCHEDULE and TRIGGER may be columns, whose comment changes."""
        is_column = self._word() == "ALTER" and self._word(2) in ("COMMENT", ".")
        return self._word(1) in ("SCHEDULE", "TRIGGER") and not is_column

    def _changes(self) -> str:
        return (
            "ADD SCHEDULE EVERY .., ADD TRIGGER ON UPDATE, DROP SCHEDULE, DROP TRIGGER, SET REFRESH POLICY .., "
            f"{super()._changes()}"
        )
