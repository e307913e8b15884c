//! The states of a connection (IBTA volume 1, section 12.9), as data.
//!
//! A message or call for which the table has no line means nothing in that state and is ignored: datagrams are repeated,
//! overtake each other and come late.

/// A state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Active side: REQ is sent.
    ReqSent,
    /// Active side: REP has come, and the queue pair is being brought up.
    RepReceived,
    /// Passive side: REQ has come, and its consumer decides.
    ReqReceived,
    /// Passive side: REP is sent.
    RepSent,
    /// Both sides may send.
    Established,
    /// DREQ is sent.
    DreqSent,
    /// Over; remembered for a while, for messages that come again.
    TimeWait,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// REQ came again.
    Req,
    /// MRA came.
    Mra,
    /// REJ came.
    Rej,
    /// REP came.
    Rep,
    /// RTU came.
    Rtu,
    /// DREQ came.
    Dreq,
    /// DREP came.
    Drep,
    /// Data came, which says what RTU says.
    Data,
    /// The consumer takes a request.
    Accept,
    /// The consumer's queue pair is up.
    Ready,
    /// The consumer does not want the connection, or no longer.
    End,
    /// Nobody answers, or the time of remembering is over.
    Expired,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// What was sent last, once more.
    Again,
    /// MRA.
    Patience,
    /// The REP that the consumer has made.
    Reply,
    /// RTU.
    ReadyToUse,
    /// REJ: the consumer says no.
    Refusal,
    /// REJ: time is over.
    TimedOut,
    /// DREQ.
    Disconnect,
    /// DREP.
    Disconnected,
}

/// What the consumer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Nothing.
    Nothing,
    /// REP has come.
    Replied,
    /// RTU has come.
    Established,
    /// REJ has come.
    Refused,
    /// Nobody answers.
    Unreachable,
    /// The connection is over.
    Closed,
}

/// What an input does: the state that follows (`None`: forgotten), what is sent and who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state that follows.
    pub next: Option<State>,
    /// What is sent.
    pub answer: Answer,
    /// What the consumer is told.
    pub notice: Notice,
}

/// The table.
pub const TABLE: &[(State, Input, Option<State>, Answer, Notice)] = {
    use Answer as A;
    use Input as I;
    use Notice as N;
    use State as S;
    &[
        (S::ReqSent, I::Mra, Some(S::ReqSent), A::Nothing, N::Nothing),
        (S::ReqSent, I::Rep, Some(S::RepReceived), A::Nothing, N::Replied),
        (S::ReqSent, I::Rej, None, A::Nothing, N::Refused),
        (S::ReqSent, I::End, None, A::TimedOut, N::Nothing),
        (S::ReqSent, I::Expired, None, A::TimedOut, N::Unreachable),
        (S::RepReceived, I::Ready, Some(S::Established), A::ReadyToUse, N::Nothing),
        (S::RepReceived, I::Rej, None, A::Nothing, N::Refused),
        (S::RepReceived, I::Dreq, Some(S::TimeWait), A::Disconnected, N::Closed),
        (S::RepReceived, I::End, None, A::Refusal, N::Nothing),
        (S::ReqReceived, I::Req, Some(S::ReqReceived), A::Patience, N::Nothing),
        (S::ReqReceived, I::Rej, None, A::Nothing, N::Closed),
        (S::ReqReceived, I::Accept, Some(S::RepSent), A::Reply, N::Nothing),
        (S::ReqReceived, I::End, None, A::Refusal, N::Nothing),
        (S::RepSent, I::Req, Some(S::RepSent), A::Again, N::Nothing),
        (S::RepSent, I::Mra, Some(S::RepSent), A::Nothing, N::Nothing),
        (S::RepSent, I::Rtu, Some(S::Established), A::Nothing, N::Established),
        (S::RepSent, I::Data, Some(S::Established), A::Nothing, N::Established),
        (S::RepSent, I::Rej, None, A::Nothing, N::Closed),
        (S::RepSent, I::Dreq, Some(S::TimeWait), A::Disconnected, N::Closed),
        (S::RepSent, I::End, None, A::Refusal, N::Nothing),
        (S::RepSent, I::Expired, None, A::TimedOut, N::Closed),
        // Its RTU was lost.
        (S::Established, I::Rep, Some(S::Established), A::Again, N::Nothing),
        (S::Established, I::Rej, None, A::Nothing, N::Closed),
        (S::Established, I::Dreq, Some(S::TimeWait), A::Disconnected, N::Closed),
        (S::Established, I::End, Some(S::DreqSent), A::Disconnect, N::Nothing),
        (S::DreqSent, I::Dreq, Some(S::TimeWait), A::Disconnected, N::Nothing),
        (S::DreqSent, I::Drep, Some(S::TimeWait), A::Nothing, N::Nothing),
        (S::DreqSent, I::Rej, None, A::Nothing, N::Nothing),
        (S::DreqSent, I::Expired, None, A::Nothing, N::Nothing),
        (S::TimeWait, I::Dreq, Some(S::TimeWait), A::Disconnected, N::Nothing),
        (S::TimeWait, I::Expired, None, A::Nothing, N::Nothing),
    ]
};

/// What an input does in a state; `None`: nothing.
pub fn step(state: State, input: Input) -> Option<Step> {
    let line = TABLE.iter().find(|line| (line.0, line.1) == (state, input))?;
    let (_, _, next, answer, notice) = *line;
    Some(Step { next, answer, notice })
}

impl State {
    /// Whether something is repeated until an answer comes.
    pub const fn repeats(self) -> bool {
        matches!(self, Self::ReqSent | Self::RepSent | Self::DreqSent)
    }
}
