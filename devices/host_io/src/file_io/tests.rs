use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

fn wait(io: &mut FileIo, count: usize) -> BTreeMap<u64, io::Result<Vec<u8>>> {
    let mut results = BTreeMap::new();
    while results.len() < count {
        io.start().unwrap();
        poll(&mut [PollFd::new(&*io, PollFlags::IN)], None).unwrap();
        while let Some(completion) = io.completed() {
            assert!(results.insert(completion.cookie, completion.result).is_none());
        }
    }
    results
}

/// With every backend that there is here; one that the kernel forbids is named on the way.
fn with_both(test: impl Fn(&mut FileIo, &Arc<File>)) {
    for io in [FileIo::new(4), FileIo::with_threads()] {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(1 << 20).unwrap();
        test(&mut io.unwrap(), &file);
    }
}

#[test]
fn more_requests_than_fit_in_the_kernel_all_end() {
    with_both(|io, file| {
        for n in 0..40 {
            let data = Bytes::from(vec![n as u8; 3000]);
            io.submit(file, Request::Write { offset: n * 3000, data, durable: n % 8 == 0 }, n);
        }
        assert!(wait(io, 40).values().all(Result::is_ok));
        for n in 0..40 {
            io.submit(file, Request::Read { offset: n * 3000, length: 3000, into: vec![0xee] }, n);
        }
        for (n, result) in wait(io, 40) {
            let bytes = result.unwrap();
            assert_eq!((bytes.len(), bytes[0]), (3001, 0xee));
            assert!(bytes[1..].iter().all(|byte| *byte == n as u8));
        }
    });
}

#[test]
fn errors_belong_to_their_requests() {
    with_both(|io, file| {
        io.submit(file, Request::Read { offset: (1 << 20) - 10, length: 20, into: Vec::new() }, 1);
        io.submit(file, Request::Sync, 2);
        let unwritable = Arc::new(File::open("/dev/null").unwrap());
        io.submit(
            &unwritable,
            Request::Write { offset: 0, data: Bytes::from_static(b"x"), durable: false },
            3,
        );
        let results = wait(io, 3);
        assert_eq!(results[&1].as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(results[&2].is_ok());
        assert!(results[&3].is_err());
    });
}

#[test]
fn a_hole_reads_as_zeros() {
    with_both(|io, file| {
        file.write_all_at(&[7; 8192], 0).unwrap();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        io.submit(file, Request::Allocate { mode, offset: 0, length: 4096 }, 1);
        wait(io, 1).remove(&1).unwrap().unwrap();
        io.submit(file, Request::Read { offset: 4000, length: 200, into: Vec::new() }, 2);
        assert_eq!(wait(io, 1).remove(&2).unwrap().unwrap(), [[0; 96].to_vec(), vec![7; 104]].concat());
    });
}

#[test]
fn what_is_under_way_when_it_is_dropped_is_waited_for() {
    with_both(|io, file| {
        let mut other = FileIo::new(4).unwrap();
        other.submit(
            file,
            Request::Write { offset: 5, data: Bytes::from_static(b"late"), durable: false },
            1,
        );
        other.start().unwrap();
        drop(other);
        io.submit(file, Request::Read { offset: 5, length: 4, into: Vec::new() }, 1);
        assert_eq!(wait(io, 1).remove(&1).unwrap().unwrap(), b"late");
    });
}
