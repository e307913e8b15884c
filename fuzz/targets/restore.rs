//! Saved engine states from nowhere: refused, or an engine that works with whatever they say.

#![no_main]

#[path = "../../devices/roce/tests/common/mod.rs"]
mod common;
mod peer;

use arbitrary::Arbitrary;
use device_model::save::Record;
use libfuzzer_sys::fuzz_target;
use roce::engine::Config;
use roce::provider::{RoceConfig, RoceProvider};
use verbs::Provider;

/// A state, and what the peer sends to who restored it.
#[derive(Arbitrary, Debug)]
struct Input {
    /// Bytes to put into a real state; all of it if none is real.
    edits: Vec<(u16, u8)>,
    whole: Option<Vec<u8>>,
    frames: Vec<peer::Sent>,
}

/// How a record is laid out: kind, version, body.
type Raw = (String, u16, Vec<u8>);

fuzz_target!(|input: Input| {
    let mut world = peer::victim();
    world.run_for(std::time::Duration::from_micros(7));
    let saved = world.nodes[1].provider.save(world.now).expect("it is saved");
    let node = &world.nodes[1];
    let real = postcard::to_allocvec(&saved).expect("it is encoded");
    let (kind, version, mut body): Raw = postcard::from_bytes(&real).expect("records are laid out like that");
    match input.whole {
        Some(bytes) => body = bytes,
        None => {
            let len = body.len();
            input.edits.iter().for_each(|(at, byte)| body[usize::from(*at) % len] = *byte);
        }
    }
    let bytes = postcard::to_allocvec(&(kind, version, body)).expect("it is encoded");
    let record: Record = postcard::from_bytes(&bytes).expect("records are laid out like that");

    let config = RoceConfig { mac: node.mac, engine: Config { secret: 99, ..Config::default() } };
    let mut provider = RoceProvider::new(config, node.ram.clone(), node.link.clone()).expect("engine starts");
    if provider.restore(world.now, &record).is_err() {
        return;
    }
    world.nodes[1].provider = provider;
    for frame in input.frames.iter().take(16) {
        frame.deliver(&mut world);
    }
    world.run_for(std::time::Duration::from_millis(50));
});
