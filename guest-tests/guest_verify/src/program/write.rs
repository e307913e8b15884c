//! RDMA WRITE in both directions at once.
//!
//! The writer tells the peer of each message, so that it looks, and the peer tells the writer when a slot may be
//! written again. Messages that tell carry their number as immediate data; the top bit says which kind they are.

use anyhow::Result;
use guest_verify::plan::Operation;
use guest_verify::tally::Tally;

use crate::session::{Place, Session};
use crate::verbs::{Completion, Work};

/// Marks a number that says how many slots were looked at.
const LOOKED: u32 = 1 << 31;
/// Marks requests whose completion means nothing but that they succeeded.
const ASIDE: u64 = 1 << 63;

/// Writes the plan's messages into the peer and checks those that the peer writes here.
pub fn verify(session: &mut Session) -> Result<Tally> {
    let slots = session.plan().slots();
    for slot in 0..slots {
        session.clear(Place::In(slot));
    }
    // One request for each message and each answer that the peer may have under way.
    for _ in 0..2 * slots {
        session.receive(ASIDE, Place::Note)?;
    }
    session.peer().meet("receives are posted")?;
    let mut run =
        Run { session, tally: Tally::new(Operation::Write), under_way: 0, posted: 0, looked_at: 0, seen: 0 };
    run.run()?;
    let tally = run.tally;
    session.peer().meet("writes are done")?;
    Ok(tally)
}

struct Run<'a> {
    session: &'a Session,
    tally: Tally,
    /// Requests of the send queue that have not completed.
    under_way: u32,
    /// Messages of this end that were posted.
    posted: u32,
    /// Messages of this end that the peer has looked at.
    looked_at: u32,
    /// Messages of the peer that this end has looked at.
    seen: u32,
}

impl Run<'_> {
    fn run(&mut self) -> Result<()> {
        let (count, slots) = (self.session.plan().count, self.session.plan().slots());
        while self.looked_at < count || self.seen < count || self.under_way > 0 {
            // Two requests a message and one for an answer must fit the send queue.
            while self.posted < count
                && self.posted - self.looked_at < slots
                && self.under_way + 2 < 3 * slots
            {
                self.write()?;
            }
            let completion = self.session.complete()?;
            if completion.receive {
                self.heard(completion)?;
            } else {
                self.under_way -= 1;
            }
        }
        Ok(())
    }

    /// Writes one message and tells the peer, every other time in one request.
    fn write(&mut self) -> Result<()> {
        let session = self.session;
        let (number, slot) = (self.posted, self.posted % session.plan().slots());
        session.make(Place::Out(slot), session.our_origin(), u64::from(number));
        let (to, key) = session.remote(Place::In(slot));
        if number % 2 == 0 {
            session.post(ASIDE, Work::Write { to, key, immediate: None }, Place::Out(slot))?;
            session.note(ASIDE, number)?;
            self.under_way += 2;
        } else {
            session.post(ASIDE, Work::Write { to, key, immediate: Some(number) }, Place::Out(slot))?;
            self.under_way += 1;
        }
        self.posted += 1;
        Ok(())
    }

    fn heard(&mut self, completion: Completion) -> Result<()> {
        let session = self.session;
        session.receive(ASIDE, Place::Note)?;
        let Some(number) = completion.immediate else {
            self.tally.expect("Immediate data of a note", 0, 1);
            return Ok(());
        };
        if number & LOOKED != 0 {
            self.tally.expect("Number of an answer", u64::from(number & !LOOKED), u64::from(self.looked_at));
            self.looked_at += 1;
            return Ok(());
        }
        self.tally.expect("Number of a note", u64::from(number), u64::from(self.seen));
        let place = Place::In(self.seen % session.plan().slots());
        session.check(place, session.their_origin(), u64::from(self.seen), &mut self.tally);
        session.clear(place);
        session.note(ASIDE, LOOKED | self.seen)?;
        self.under_way += 1;
        self.seen += 1;
        Ok(())
    }
}
