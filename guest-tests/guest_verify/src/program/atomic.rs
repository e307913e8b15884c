//! Atomics in both directions at once, each end on a counter in the other.

use anyhow::Result;
use guest_verify::plan::Operation;
use guest_verify::script::{Atomic, Script};
use guest_verify::tally::Tally;

use crate::session::{Place, Session};
use crate::verbs::Work;

/// Runs the script on the peer's counter and checks every answer, then checks what the peer's made of the own one.
pub fn verify(session: &mut Session) -> Result<Tally> {
    let (count, slots) = (session.plan().count, session.plan().slots());
    let mut tally = Tally::new(Operation::Atomic);
    session.peer().meet("counters are zero")?;
    let (mut script, mut expected) = (Script::new(count), Script::new(count));
    let (mut posted, mut done) = (0, 0);
    while done < 2 * count {
        while posted < 2 * count && posted - done < slots {
            let Some((atomic, _)) = script.next() else { break };
            let place = Place::Answer(posted % slots);
            session.clear(place);
            session.post(u64::from(posted), work(session, atomic), place)?;
            posted += 1;
        }
        let completion = session.complete()?;
        tally.expect("Order of completions", completion.id, u64::from(done));
        if let Some((_, found)) = expected.next() {
            tally.expect("Answer of an atomic", session.number(Place::Answer(done % slots)), found);
        }
        tally.answered();
        done += 1;
    }
    session.peer().meet("atomics are done")?;
    let mut theirs = Script::new(count);
    theirs.by_ref().for_each(drop);
    tally.expect("The counter", session.number(Place::Counter), theirs.value());
    Ok(tally)
}

fn work(session: &Session, atomic: Atomic) -> Work {
    let (at, key) = session.remote(Place::Counter);
    match atomic {
        Atomic::Add(amount) => Work::FetchAdd { at, key, amount },
        Atomic::CompareSwap { compare, swap } => Work::CompareSwap { at, key, compare, swap },
    }
}
