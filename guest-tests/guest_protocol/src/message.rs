//! The messages between harness and agent.
//!
//! Encoded with postcard. Harness and agent are built from one source tree and the agent travels into the guest
//! with each run, so there is no version to negotiate.

use serde::{Deserialize, Serialize};

/// Names one command of one guest; the harness counts them up and never uses one twice.
pub type CommandId = u32;

/// Longest piece of a program's output in one [`Report::Output`], in bytes.
pub const MAX_OUTPUT: usize = 4096;

/// What the harness asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a program beside those that run already.
    Exec(Exec),
    /// Bytes for the standard input of a command that was started with one; none means end of file.
    Input {
        /// The command they are for.
        id: CommandId,
        /// At most [`MAX_OUTPUT`] bytes.
        bytes: Vec<u8>,
    },
    /// Send a signal to the process group of a command.
    Signal {
        /// The command.
        id: CommandId,
        /// Linux signal number.
        signal: i32,
    },
    /// Write dirty data back and switch the machine off.
    PowerOff,
    /// Write dirty data back and restart the machine.
    Reboot,
}

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Names it from now on.
    pub id: CommandId,
    /// Program, looked up in PATH, and its arguments.
    pub argv: Vec<String>,
    /// Added to the agent's own environment.
    pub env: Vec<(String, String)>,
    /// What its standard streams are.
    pub streams: Streams,
}

/// What a command's standard streams are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Streams {
    /// No input; output and errors apart.
    #[default]
    Output,
    /// Input by [`Request::Input`]; output and errors apart.
    Piped,
    /// A terminal of this many rows and columns; everything comes as [`Stream::Out`].
    Terminal {
        /// Rows.
        rows: u16,
        /// Columns.
        columns: u16,
    },
}

/// What the agent tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The guest is up. Sent once in each life of the guest.
    Ready {
        /// Host name.
        host: String,
        /// Kernel release, as `uname -r` prints it.
        kernel: String,
    },
    /// A piece of a command's output.
    Output {
        /// The command.
        id: CommandId,
        /// Which of its streams.
        stream: Stream,
        /// At most [`MAX_OUTPUT`] bytes.
        bytes: Vec<u8>,
    },
    /// A command has ended and all its output was sent.
    Ended {
        /// The command.
        id: CommandId,
        /// How it ended.
        ending: Ending,
    },
}

/// One of a program's output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It exited with this status.
    Status(i32),
    /// This signal killed it.
    Signal(i32),
    /// It could not be started; the text says why.
    NotStarted(String),
}

/// A message that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("Message on the guest's control line does not parse")]
pub struct Malformed(#[from] postcard::Error);

/// A message as bytes for [`crate::link::Link::send`].
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("Messages hold only types that postcard can write")
}

/// A message out of the bytes of a [`crate::link::Event::Message`].
///
/// # Errors
///
/// When the bytes are not such a message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    Ok(postcard::from_bytes(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_survives_encoding() {
        let request = Request::Exec(Exec {
            id: 7,
            argv: vec!["ibv_devinfo".into(), "-v".into()],
            env: vec![("A".into(), "10.0.0.1".into())],
            streams: Streams::Terminal { rows: 24, columns: 80 },
        });
        assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Report>(&bytes);
            let _ = decode::<Request>(&bytes);
        }
    }
}
