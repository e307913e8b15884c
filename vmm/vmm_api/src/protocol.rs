//! Requests, replies and errors.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Migrate, MigrationStatus, RdmaReport, RdmaShow, Resolve, VmInfo};

/// Version of the protocol; a change that an older end would misunderstand makes it another one.
pub const VERSION: u32 = 1;
/// Longest request in bytes, without the end of its line.
pub const MAX_REQUEST: usize = 64 << 10;
/// Longest reply in bytes, without the end of its line.
pub const MAX_REPLY: usize = 4 << 20;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", content = "params")]
pub enum Request {
    /// What the machine is made of.
    #[serde(rename = "vm.info")]
    VmInfo {},
    /// The state of RDMA devices.
    #[serde(rename = "rdma.show")]
    RdmaShow(RdmaShow),
    /// CPUs and devices stand still from now on.
    #[serde(rename = "vm.pause")]
    Pause {},
    /// A paused machine goes on.
    #[serde(rename = "vm.resume")]
    Resume {},
    /// Saves the machine.
    #[serde(rename = "vm.snapshot")]
    Snapshot(Snapshot),
    /// Begins to move the machine.
    #[serde(rename = "vm.migrate")]
    Migrate(Migrate),
    /// How that is going.
    #[serde(rename = "vm.migrate.status")]
    MigrationStatus {},
    /// Gives it up.
    #[serde(rename = "vm.migrate.cancel")]
    MigrateCancel {},
    /// Decides who has the machine, if the two ends cannot.
    #[serde(rename = "vm.migrate.resolve")]
    MigrateResolve(Resolve),
}

/// Where to save a machine, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Directory; an absolute path.
    pub to: PathBuf,
    /// Whether the machine ends.
    #[serde(default)]
    pub stop: bool,
}

/// Nothing to tell but that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

impl Request {
    /// Names of all commands.
    pub const METHODS: [&str; 9] = [
        "vm.info",
        "rdma.show",
        "vm.pause",
        "vm.resume",
        "vm.snapshot",
        "vm.migrate",
        "vm.migrate.status",
        "vm.migrate.cancel",
        "vm.migrate.resolve",
    ];

    /// The request as a line, with its end.
    pub fn encode(&self, id: u64) -> String {
        #[derive(Serialize)]
        struct Outgoing<'a> {
            version: u32,
            id: u64,
            #[serde(flatten)]
            request: &'a Request,
        }
        line(&Outgoing { version: VERSION, id, request: self })
    }
}

/// What a successful command gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Request::VmInfo`].
    #[serde(rename = "vm.info")]
    VmInfo(VmInfo),
    /// To [`Request::RdmaShow`].
    #[serde(rename = "rdma.show")]
    RdmaShow(RdmaReport),
    /// To [`Request::Pause`].
    #[serde(rename = "vm.pause")]
    Pause(Done),
    /// To [`Request::Resume`].
    #[serde(rename = "vm.resume")]
    Resume(Done),
    /// To [`Request::Snapshot`].
    #[serde(rename = "vm.snapshot")]
    Snapshot(Done),
    /// To [`Request::Migrate`].
    #[serde(rename = "vm.migrate")]
    Migrate(Done),
    /// To [`Request::MigrationStatus`].
    #[serde(rename = "vm.migrate.status")]
    MigrationStatus(MigrationStatus),
    /// To [`Request::MigrateCancel`].
    #[serde(rename = "vm.migrate.cancel")]
    MigrateCancel(Done),
    /// To [`Request::MigrateResolve`].
    #[serde(rename = "vm.migrate.resolve")]
    MigrateResolve(Done),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was carried out.
    Ok(Answer),
    /// It was not.
    Error(ApiError),
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Version of the protocol.
    pub version: u32,
    /// That of the request; 0 if it had none that could be read.
    pub id: u64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Reply {
    /// A reply of this version.
    pub fn new(id: u64, outcome: Result<Answer, ApiError>) -> Self {
        let outcome = outcome.map_or_else(Outcome::Error, Outcome::Ok);
        Self { version: VERSION, id, outcome }
    }

    /// The reply as a line, with its end.
    pub fn encode(&self) -> String {
        line(self)
    }
}

/// What kind of error it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request.
    BadRequest,
    /// The line is longer than [`MAX_REQUEST`]; the connection ends.
    LineTooLong,
    /// The request is of another version of the protocol.
    UnsupportedVersion,
    /// There is no such command.
    UnknownMethod,
    /// The command does not take such parameters.
    InvalidParams,
    /// The machine has no slot of that name.
    NoSuchSlot,
    /// The slot has no RDMA device.
    NoRdma,
    /// The machine is just being started, or is on its way out.
    NotRunning,
    /// The command could not be carried out.
    Failed,
    /// The monitor failed.
    Internal,
    /// A kind that this client is too old to know.
    #[serde(other)]
    Other,
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// For programs.
    pub kind: ErrorKind,
    /// For people: a sentence.
    pub message: String,
}

impl ApiError {
    /// An error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Reads a line without its end: the client's id, and the request or what is wrong with it.
pub fn parse_request(line: &[u8]) -> (u64, Result<Request, ApiError>) {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Incoming {
        version: u32,
        #[serde(default)]
        id: u64,
        method: String,
        #[serde(default)]
        params: Option<Value>,
    }
    let Incoming { version, id, method, params } = match serde_json::from_slice(line) {
        Ok(incoming) => incoming,
        Err(error) => {
            let message = format!("This line is no request: {error}");
            return (0, Err(ApiError::new(ErrorKind::BadRequest, message)));
        }
    };
    let params = params.unwrap_or_else(|| json!({}));
    (id, request(version, &method, params))
}

fn request(version: u32, method: &str, params: Value) -> Result<Request, ApiError> {
    if version != VERSION {
        let message = format!("Version {version} of the protocol is not spoken here, only {VERSION}");
        return Err(ApiError::new(ErrorKind::UnsupportedVersion, message));
    }
    if !Request::METHODS.contains(&method) {
        let message = format!("There is no command {method:?}; there are {}", Request::METHODS.join(", "));
        return Err(ApiError::new(ErrorKind::UnknownMethod, message));
    }
    serde_json::from_value(json!({ "method": method, "params": params })).map_err(|error| {
        ApiError::new(ErrorKind::InvalidParams, format!("{method} does not take this: {error}"))
    })
}

/// Plain data always has a JSON form; should it not, an empty line is what the other end makes an error of.
fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(line: &str) -> ErrorKind {
        parse_request(line.as_bytes()).1.unwrap_err().kind
    }

    #[test]
    fn requests_come_back_from_their_lines() {
        let show = RdmaShow { slot: Some("net1".into()), first_qp: 9 };
        for (id, request) in [(0, Request::VmInfo {}), (u64::MAX, Request::RdmaShow(show))] {
            let line = request.encode(id);
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(parse_request(line.trim_end().as_bytes()), (id, Ok(request)));
        }
    }

    #[test]
    fn id_and_params_may_be_left_out() {
        let (id, request) = parse_request(br#"{"version":1,"method":"rdma.show"}"#);
        assert_eq!((id, request), (0, Ok(Request::RdmaShow(RdmaShow::default()))));
    }

    #[test]
    fn every_method_in_the_list_is_one() {
        for method in Request::METHODS {
            let params = match method {
                "vm.snapshot" => r#"{"to":"/snapshot"}"#,
                "vm.migrate" => r#"{"to":"unix:/socket"}"#,
                "vm.migrate.resolve" => r#"{"side":"source"}"#,
                _ => "{}",
            };
            let line = format!(r#"{{"version":1,"method":"{method}","params":{params}}}"#);
            let (_, request) = parse_request(line.as_bytes());
            let line = request.unwrap().encode(0);
            assert!(line.contains(&format!("\"{method}\"")), "{line}");
        }
    }

    #[test]
    fn bad_requests_are_told_apart() {
        for line in ["", "{", "[]", "null", "7", r#"{"version":1}"#, r#"{"version":-1,"method":"vm.info"}"#] {
            assert_eq!(kind(line), ErrorKind::BadRequest, "{line}");
        }
        assert_eq!(kind(r#"{"version":1,"method":"vm.info","extra":1}"#), ErrorKind::BadRequest);
        assert_eq!(kind(r#"{"version":2,"method":"vm.info"}"#), ErrorKind::UnsupportedVersion);
        assert_eq!(kind(r#"{"version":1,"method":"vm.explode"}"#), ErrorKind::UnknownMethod);
        assert_eq!(
            kind(r#"{"version":1,"method":"rdma.show","params":{"slit":"net0"}}"#),
            ErrorKind::InvalidParams
        );
        assert_eq!(kind(r#"{"version":1,"method":"rdma.show","params":[1,2,3]}"#), ErrorKind::InvalidParams);
        let deep = format!(r#"{{"version":1,"method":"vm.info","params":{}"#, "[".repeat(60_000));
        assert_eq!(kind(&deep), ErrorKind::BadRequest);
    }

    #[test]
    fn errors_have_a_kind_that_older_clients_survive() {
        let error = ApiError::new(ErrorKind::NoSuchSlot, "There is no slot x");
        let line = Reply::new(3, Err(error.clone())).encode();
        assert_eq!(
            line.trim_end(),
            r#"{"version":1,"id":3,"error":{"kind":"no-such-slot","message":"There is no slot x"}}"#
        );
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap().outcome, Outcome::Error(error));
        let newer: Reply =
            serde_json::from_str(r#"{"version":1,"id":3,"error":{"kind":"new","message":"m"}}"#).unwrap();
        assert_eq!(newer.outcome, Outcome::Error(ApiError::new(ErrorKind::Other, "m")));
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_there_is_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (id, outcome) = parse_request(&bytes);
            if let Err(error) = outcome {
                let line = Reply::new(id, Err(error)).encode();
                prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            }
        }
    }
}
