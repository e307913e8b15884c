//! `--serial num=1,type=stdio`

use std::path::PathBuf;

use serde::Deserialize;

use super::key_value::{KeyValueError, Keyed, parse};

/// What a serial port is connected to on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SerialType {
    /// The terminal or pipes `verbena` was started with.
    Stdio,
    /// A file that takes the output.
    File,
    /// A UNIX stream socket that `verbena` listens on.
    Socket,
    /// Nothing.
    Null,
}

/// A serial port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialConfig {
    /// 1 for COM1 (`ttyS0`), 2 for COM2 (`ttyS1`).
    #[serde(default = "first_port")]
    pub num: u8,
    /// What it is connected to.
    #[serde(rename = "type")]
    pub kind: SerialType,
    /// The file or socket.
    pub path: Option<PathBuf>,
}

impl Keyed for SerialConfig {
    const MAIN_KEY: &'static str = "type";
}

fn first_port() -> u8 {
    1
}

impl SerialConfig {
    /// COM1 on stdio.
    pub fn stdio() -> Self {
        Self { num: 1, kind: SerialType::Stdio, path: None }
    }

    /// Reads the flag; `path` is given if and only if the type has one.
    ///
    /// # Errors
    ///
    /// What is wrong, for people.
    pub fn parse(text: &str) -> Result<Self, KeyValueError> {
        let config: Self = parse(text)?;
        config.check().map_err(serde::de::Error::custom)?;
        Ok(config)
    }

    /// The path of a file or socket.
    ///
    /// # Errors
    ///
    /// When it is missing, or present where it means nothing; or the port number is none.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=2).contains(&self.num) {
            return Err(format!("serial port {} does not exist; num is 1 or 2", self.num));
        }
        match (self.kind, &self.path) {
            (SerialType::File | SerialType::Socket, None) => {
                Err("a serial port of type file or socket needs path=".to_owned())
            }
            (SerialType::Stdio | SerialType::Null, Some(_)) => {
                Err("path= goes with type=file or type=socket".to_owned())
            }
            _ => Ok(()),
        }
    }
}
