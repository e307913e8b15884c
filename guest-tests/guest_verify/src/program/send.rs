//! SEND in both directions at once.

use anyhow::Result;
use guest_verify::plan::Operation;
use guest_verify::tally::Tally;

use crate::session::{Place, Session};
use crate::verbs::Work;

/// Sends and receives the plan's messages and checks those that came.
pub fn verify(session: &mut Session) -> Result<Tally> {
    let (count, slots) = (session.plan().count, session.plan().slots());
    let mut tally = Tally::new(Operation::Send);
    for slot in 0..slots {
        session.clear(Place::In(slot));
        session.receive(u64::from(slot), Place::In(slot))?;
    }
    session.peer().meet("receives are posted")?;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < count || received < count {
        while posted < count && posted - sent < slots {
            send(session, posted, slots)?;
            posted += 1;
        }
        let completion = session.complete()?;
        if !completion.receive {
            tally.expect("Order of completions of sends", completion.id, u64::from(sent));
            sent += 1;
            continue;
        }
        let place = Place::In(received % slots);
        tally.expect("Order of completions of receives", completion.id, u64::from(received % slots));
        tally.expect("Length", completion.length as u64, u64::from(session.plan().size));
        tally.expect("Immediate data", option(completion.immediate), option(immediate(received)));
        session.check(place, session.their_origin(), u64::from(received), &mut tally);
        received += 1;
        if u64::from(received) + u64::from(slots) <= u64::from(count) {
            session.clear(place);
            session.receive(completion.id, place)?;
        }
    }
    session.peer().meet("sends are done")?;
    Ok(tally)
}

fn send(session: &Session, sequence: u32, slots: u32) -> Result<()> {
    let place = Place::Out(sequence % slots);
    session.make(place, session.our_origin(), u64::from(sequence));
    session.post(u64::from(sequence), Work::Send { immediate: immediate(sequence) }, place)
}

/// Every other message carries its number as immediate data.
fn immediate(sequence: u32) -> Option<u32> {
    (sequence % 2 == 1).then_some(sequence)
}

/// Immediate data as a number that tells none from zero.
fn option(immediate: Option<u32>) -> u64 {
    immediate.map_or(u64::MAX, u64::from)
}
