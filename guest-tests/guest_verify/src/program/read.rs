//! RDMA READ in both directions at once.

use anyhow::Result;
use guest_verify::plan::Operation;
use guest_verify::tally::Tally;

use crate::session::{Place, Session};
use crate::verbs::Work;

/// Reads the peer's slots over and over and checks what came; at the end checks that its own were left alone.
pub fn verify(session: &mut Session) -> Result<Tally> {
    let (count, slots) = (session.plan().count, session.plan().slots());
    let mut tally = Tally::new(Operation::Read);
    for slot in 0..slots {
        session.make(Place::In(slot), session.our_origin(), u64::from(slot));
    }
    session.peer().meet("slots are filled")?;
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < slots {
            let place = Place::Out(posted % slots);
            session.clear(place);
            let (from, key) = session.remote(Place::In(source(posted, slots)));
            session.post(u64::from(posted), Work::Read { from, key }, place)?;
            posted += 1;
        }
        let completion = session.complete()?;
        tally.expect("Order of completions", completion.id, u64::from(done));
        tally.expect("Length", completion.length as u64, u64::from(session.plan().size));
        let content = u64::from(source(done, slots));
        session.check(Place::Out(done % slots), session.their_origin(), content, &mut tally);
        done += 1;
    }
    session.peer().meet("reads are done")?;
    let mut after = Tally::new(Operation::Read);
    for slot in 0..slots {
        session.check(Place::In(slot), session.our_origin(), u64::from(slot), &mut after);
    }
    tally.expect("Slots that reads have changed", u64::from(!after.is_clean()), 0);
    Ok(tally)
}

/// The peer's slot that read `number` takes: not the one whose turn it is, so that a slot mixed up shows.
fn source(number: u32, slots: u32) -> u32 {
    (number.wrapping_mul(7).wrapping_add(3)) % slots
}
