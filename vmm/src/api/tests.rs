//! Clients of every kind at a real socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use vmm_api::{ApiError, Client, ErrorKind, MAX_REQUEST, Outcome, RdmaReport, Reply, VmInfo};

use super::server::MAX_CONNECTIONS;
use super::*;
use crate::error::Exit;

/// A machine whose version is so long that no socket buffer holds it.
struct Talkative;

fn long_version() -> String {
    "v".repeat(2 << 20)
}

impl Service for Talkative {
    fn serve(&self, request: &Request) -> Result<Answer, ApiError> {
        match request {
            Request::VmInfo {} => Ok(Answer::VmInfo(VmInfo {
                monitor_version: long_version(),
                process: 1,
                cpus: 2,
                memory_bytes: 3,
                slots: Vec::new(),
            })),
            Request::RdmaShow(_) => Ok(Answer::RdmaShow(RdmaReport::default())),
            _ => Err(ApiError::new(ErrorKind::Failed, "this machine does nothing but talk")),
        }
    }
}

struct Rig {
    _directory: tempfile::TempDir,
    path: PathBuf,
    thread: Option<IoThread>,
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let thread = listen(&path, Arc::new(Talkative)).unwrap();
        Self { _directory: directory, path, thread: Some(thread) }
    }

    fn dial(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(&self.path).unwrap())
    }

    fn check_alive(&self) {
        assert_eq!(Client::connect(&self.path).unwrap().rdma_show(None).unwrap(), RdmaReport::default());
    }
}

fn say(stream: &mut BufReader<UnixStream>, bytes: &[u8]) {
    stream.get_mut().write_all(bytes).unwrap();
}

fn hear(stream: &mut BufReader<UnixStream>) -> Reply {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn error_of(reply: Reply) -> ErrorKind {
    match reply.outcome {
        Outcome::Error(error) => error.kind,
        Outcome::Ok(answer) => panic!("{answer:?}"),
    }
}

fn show(id: u64) -> String {
    Request::RdmaShow(Default::default()).encode(id)
}

#[test]
fn socket_is_private_in_use_and_removed_at_the_end() {
    let mut rig = Rig::new();
    assert_eq!(std::fs::metadata(&rig.path).unwrap().permissions().mode() & 0o777, 0o600);
    let Err(error) = listen(&rig.path, Arc::new(Talkative)) else { panic!("two listen at one path") };
    assert_eq!(error.exit(), Exit::Resource);
    assert!(error.to_string().contains("in use"), "{error}");
    // A client that stays does not keep the thread from ending.
    let mut client = rig.dial();
    say(&mut client, b"{");
    rig.thread = None;
    assert!(!rig.path.exists());
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
}

#[test]
fn bad_requests_are_answered_and_the_connection_goes_on() {
    let rig = Rig::new();
    let mut client = rig.dial();
    say(&mut client, b"\n\xff\xfe\n{\"version\":9,\"method\":\"vm.info\"}\n");
    let kinds = [(); 3].map(|()| error_of(hear(&mut client)));
    assert_eq!(kinds, [ErrorKind::BadRequest, ErrorKind::BadRequest, ErrorKind::UnsupportedVersion]);
    say(&mut client, show(5).as_bytes());
    assert_eq!(hear(&mut client), Reply::new(5, Ok(Answer::RdmaShow(RdmaReport::default()))));
}

#[test]
fn requests_in_one_piece_or_in_single_bytes_are_answered_in_order() {
    let rig = Rig::new();
    let mut client = rig.dial();
    let lines: String = (1..=50).map(show).collect();
    say(&mut client, lines.as_bytes());
    (1..=50).for_each(|id| assert_eq!(hear(&mut client).id, id));
    show(51).bytes().for_each(|byte| say(&mut client, &[byte]));
    assert_eq!(hear(&mut client).id, 51);
    // Whoever hangs up for writing still gets what was asked for, and then the end.
    say(&mut client, (show(52) + &show(53) + "half a req").as_bytes());
    client.get_mut().shutdown(Shutdown::Write).unwrap();
    assert_eq!([hear(&mut client).id, hear(&mut client).id], [52, 53]);
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn endless_line_is_cut_off() {
    let rig = Rig::new();
    let mut client = rig.dial();
    let mut longest = show(1).trim_end().as_bytes().to_vec();
    longest.resize(MAX_REQUEST, b' ');
    longest.push(b'\n');
    say(&mut client, &longest);
    assert_eq!(hear(&mut client).id, 1);
    say(&mut client, &vec![b' '; MAX_REQUEST + 1]);
    assert_eq!(error_of(hear(&mut client)), ErrorKind::LineTooLong);
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    rig.check_alive();
}

#[test]
fn client_that_does_not_read_holds_up_only_itself() {
    let rig = Rig::new();
    let mut slow = rig.dial();
    let lines: String = (1..=5).map(|id| Request::VmInfo {}.encode(id)).collect();
    say(&mut slow, lines.as_bytes());
    rig.check_alive();
    for id in 1..=5 {
        let Reply { id: answered, outcome: Outcome::Ok(Answer::VmInfo(info)), .. } = hear(&mut slow) else {
            panic!("no answer")
        };
        assert_eq!((answered, info.monitor_version.len()), (id, long_version().len()));
    }
    // One that goes away in the middle of an answer does no harm either.
    say(&mut slow, lines.as_bytes());
    slow.read_exact(&mut [0; 10]).unwrap();
    drop(slow);
    rig.check_alive();
}

#[test]
fn quietest_client_makes_room_for_a_new_one() {
    let rig = Rig::new();
    let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| rig.dial()).collect();
    for (id, client) in (1..).zip(&mut clients) {
        say(client, show(id).as_bytes());
        assert_eq!(hear(client).id, id);
    }
    // The first has the latest word, so the second goes.
    say(&mut clients[0], show(7).as_bytes());
    assert_eq!(hear(&mut clients[0]).id, 7);
    rig.check_alive();
    assert_eq!(clients[1].read_to_end(&mut Vec::new()).unwrap(), 0);
    say(&mut clients[0], show(8).as_bytes());
    assert_eq!(hear(&mut clients[0]).id, 8);
}
