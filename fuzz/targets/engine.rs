//! A peer that sends anything: frames with the right addresses and CRC, and whatever else the input says, at a connection in
//! the middle of work.

#![no_main]

#[path = "../../devices/roce/tests/common/mod.rs"]
mod common;
mod peer;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use common::World;

/// What the peer does.
#[derive(Arbitrary, Debug)]
struct Input {
    frames: Vec<peer::Sent>,
}

fuzz_target!(|input: Input| {
    let mut world: World = peer::victim();
    for frame in input.frames.iter().take(64) {
        frame.deliver(&mut world);
    }
    peer::check(&mut world);
});
