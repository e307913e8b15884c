use std::os::unix::fs::MetadataExt;

use device_model::ram::{GuestRam, Ram};
use vm_memory::GuestAddress;

use super::*;

fn ram() -> Ram {
    Ram::from_ranges(&[(GuestAddress(0), 1 << 20), (GuestAddress(1 << 32), 1 << 20)]).unwrap()
}

#[test]
fn memory_comes_back_and_zeros_take_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(MEMORY);
    let old = ram();
    let memory: &dyn GuestRam = &old;
    memory.write(0x3fff, &[1, 2]).unwrap();
    memory.write((1 << 32) + 0xf_ffff, &[3]).unwrap();
    memory::write(&path, &old).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 2 << 20);
    assert!(metadata.blocks() * 512 <= 64 << 10, "{} blocks", metadata.blocks());

    let new = ram();
    memory::read(&path, &new).unwrap();
    let all = |ram: &Ram| {
        let mut bytes = vec![0; 2 << 20];
        let (low, high) = bytes.split_at_mut(1 << 20);
        (ram as &dyn GuestRam).read(0, low).unwrap();
        (ram as &dyn GuestRam).read(1 << 32, high).unwrap();
        bytes
    };
    assert!(all(&old) == all(&new));
    let small = Ram::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    assert!(memory::read(&path, &small).unwrap_err().to_string().contains("--memory"));
}

fn records() -> Records {
    let mut records = Records::default();
    records.put(ABOUT, Record::new(&About { origin_goes_on: true, connections: 300 }).unwrap());
    records
}

#[test]
fn state_with_any_byte_changed_or_missing_is_refused() {
    let good = state::encode(&records()).unwrap();
    assert_eq!(state::decode(&good).unwrap(), records());
    for len in 0..good.len() {
        assert!(state::decode(&good[..len]).is_err());
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert!(state::decode(&bad).is_err(), "byte {at}");
    }
    assert!(state::decode(&[good, vec![0]].concat()).is_err());
}

#[test]
fn copy_of_live_connections_is_refused_unless_told() {
    let config = |take_over| RestoreConfig { from: "/nowhere".into(), take_over };
    let check = |connections, origin_goes_on, first, take_over| {
        check_connections(About { origin_goes_on, connections }, first, &config(take_over)).is_ok()
    };
    assert!(check(0, true, false, false), "there are none");
    assert!(check(1, false, true, false), "nobody else has them");
    assert!(!check(1, true, true, false), "the original has them");
    assert!(!check(1, false, false, false), "another copy has them");
    assert!(check(1, true, false, true), "it was told");
}

#[test]
fn snapshot_knows_whether_it_was_restored() {
    let directory = tempfile::tempdir().unwrap();
    assert!(mark_restored(directory.path()).unwrap());
    assert!(!mark_restored(directory.path()).unwrap());
}
