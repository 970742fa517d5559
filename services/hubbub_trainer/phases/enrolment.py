"""A trainer's part in a run.

    INVITED     a proposal arrived
    PREPARING   nothing is against it; the task is loaded and the initial model rebuilt
    PLEDGED     the digest of that model is the manifest's; our key for the run is out
    AGREEING    we have everybody's keys; all clients deal their parts of the group secret and confirm it
    INHERITING  the run goes on from one that we were no part of; a peer that was sends us its model
    JOINED      all clients confirmed the same secret; rounds are begun in order
    LEAVING     the run is completed, but we were slow: its last sums are still to be taken in
    REFUSED, ENDED   final

A round is set up when it is ordered, or when an aggregator speaks of it as the next one, so that it can take in
what others send of it, and begins when the one before is over. Rounds that were void after their first phase was
released are counted, per model and per run, and beyond what the policy allows we leave. A released round that
hardly moved the model counts as void too.

A client that was away for long finds its inbox without its oldest messages: orders skip a round, or a round is
never finished while others are ordered. It then begins no round until it has a peer's model of a later one
(`phases/catchup.py`), or until what seemed lost has come. So does one that was told other sums than its peers. To
peers in that place it vouches for the models that it held after the last rounds. It sends its own to each of them
once for a round, and no more often than the policy allows.

A client whose folder is an old copy looks like one that was away. The order to train names the last round that it
took part in. If it has not begun that round, it leaves the run: its counts of models and void rounds are old too.

The table is here; its handlers are in `phases/joining.py` and `phases/attending.py`, and what they work on is in
`phases/standing.py`.
"""

from __future__ import annotations

from hubbub.machine.effects import Effect, Failed
from hubbub.machine.table import STAY, Kind, Table, To
from hubbub_trainer.events import (
    CaughtUp,
    ContributionArrived,
    Ended,
    GroupAgreed,
    Inherited,
    KeysArrived,
    PeerConfirmed,
    Prepared,
    Proposed,
    RoundBroken,
    RoundHeardOf,
    RoundOrdered,
    RoundOver,
    SnapshotAsked,
    SnapshotSent,
    Strayed,
    SumsLost,
    WaitIsOver,
)
from hubbub_trainer.phases.attending import (
    abandon,
    begin_next,
    catch_up,
    catch_up_at_the_end,
    end,
    fail,
    find_old_copy_in,
    finish,
    give_up_waiting,
    hear_of_round_in,
    leave_in_time,
    lose_the_last,
    note_loss,
    note_sent_in,
    send_again,
    set_up_last,
    set_up_round,
    vouch_in,
)
from hubbub_trainer.phases.joining import (
    agree_if_all_dealt,
    confirm,
    consider,
    deal,
    inherit,
    keep_early_part,
    keep_part,
    leave,
    leave_pledge,
    note_confirmation,
    note_early_confirmation,
    pledge,
    refuse_task,
    repeat_answer,
    same_keys_again,
)
from hubbub_trainer.phases.standing import Enrolment, PrepareTask, State

TRANSITIONS: Table[State, Enrolment] = {
    State.INVITED: {
        Proposed: To(consider, State.PREPARING, State.REFUSED),
        Ended: To(leave, State.ENDED),
    },
    State.PREPARING: {
        Prepared: To(pledge, State.PLEDGED, State.REFUSED),
        Failed: To(refuse_task, State.REFUSED),
        Proposed: STAY,  # Asked again while the task loads.
        Ended: To(leave, State.ENDED),
    },
    State.PLEDGED: {
        Proposed: To(repeat_answer, State.PLEDGED),
        KeysArrived: To(deal, State.AGREEING),
        ContributionArrived: To(keep_early_part, State.PLEDGED),
        PeerConfirmed: To(note_early_confirmation, State.PLEDGED),
        RoundOrdered: find_old_copy_in(State.PLEDGED),
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.AGREEING: {
        ContributionArrived: To(keep_part, State.AGREEING),
        GroupAgreed: To(confirm, State.AGREEING, State.INHERITING, State.JOINED, State.ENDED),
        PeerConfirmed: To(note_confirmation, State.AGREEING, State.INHERITING, State.JOINED, State.ENDED),
        SnapshotAsked: vouch_in(State.AGREEING),
        SnapshotSent: note_sent_in(State.AGREEING),
        KeysArrived: same_keys_again(State.AGREEING),
        RoundOrdered: find_old_copy_in(State.AGREEING),
        Proposed: STAY,  # Asked twice; that all keys are here says that our answer was heard.
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.INHERITING: {
        Inherited: To(inherit, State.JOINED, State.ENDED),
        SnapshotAsked: vouch_in(State.INHERITING),
        KeysArrived: same_keys_again(State.INHERITING),
        RoundOrdered: find_old_copy_in(State.INHERITING),
        ContributionArrived: STAY,  # Delivered twice.
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: To(leave_pledge, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.JOINED: {
        RoundOrdered: To(set_up_round, State.JOINED, State.ENDED),
        RoundHeardOf: hear_of_round_in(State.JOINED),
        RoundOver: To(begin_next, State.JOINED, State.ENDED),
        RoundBroken: STAY,  # The coordinator was told, and decides.
        SumsLost: To(note_loss, State.JOINED),
        Strayed: To(note_loss, State.JOINED),
        CaughtUp: To(catch_up, State.JOINED, State.ENDED),
        SnapshotAsked: vouch_in(State.JOINED),
        SnapshotSent: note_sent_in(State.JOINED),
        KeysArrived: same_keys_again(State.JOINED),
        ContributionArrived: STAY,  # Delivered twice.
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: To(end, State.LEAVING, State.ENDED),
        Failed: To(fail, State.ENDED),
    },
    State.LEAVING: {
        RoundOver: To(finish, State.LEAVING, State.ENDED),
        RoundBroken: To(abandon, State.ENDED),
        WaitIsOver: To(give_up_waiting, State.LEAVING, State.ENDED),
        Failed: To(abandon, State.ENDED),
        SnapshotAsked: vouch_in(State.LEAVING),
        SnapshotSent: note_sent_in(State.LEAVING),
        CaughtUp: To(catch_up_at_the_end, State.LEAVING, State.ENDED),
        SumsLost: To(lose_the_last, State.LEAVING, State.ENDED),
        Strayed: To(abandon, State.ENDED),  # The peers that could help have left.
        RoundOrdered: To(set_up_last, State.LEAVING, State.ENDED),
        RoundHeardOf: hear_of_round_in(State.LEAVING),
        KeysArrived: STAY,  # Delivered twice.
        ContributionArrived: STAY,
        PeerConfirmed: STAY,
        Proposed: STAY,
        Ended: STAY,
    },
    State.REFUSED: {},
    State.ENDED: {},
}


def resume(state: State, data: Enrolment) -> tuple[Effect, ...]:
    """Load the task again, put the group secret together again, send snapshots again."""
    if state is State.PREPARING:
        return (PrepareTask(),)
    if state is State.AGREEING and not data.confirmation:
        return agree_if_all_dealt(data)
    if state is State.LEAVING:
        return (leave_in_time(data), *send_again(data))
    return send_again(data)


KIND = Kind(TRANSITIONS, State.INVITED, Enrolment, resume)
