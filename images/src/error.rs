//! What can go wrong while images are made, each with its remedy.

use std::path::PathBuf;
use std::process::ExitStatus;

/// Failure of a recipe, of the package archive, or of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("Cannot {action} {}", path.display())]
    File {
        /// What was tried, as a verb: "read", "create".
        action: &'static str,
        /// The file in question.
        path: PathBuf,
        /// Cause given by the system.
        source: std::io::Error,
    },

    /// A program could not be started at all.
    #[error("Cannot start {program}")]
    Start {
        /// Name of the program.
        program: String,
        /// Cause given by the system.
        source: std::io::Error,
    },

    /// A program ran and failed.
    #[error("{command} ended with {status}:\n{output}")]
    Command {
        /// Command line, as a shell would take it.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Last lines it wrote.
        output: String,
    },

    /// Packages of the host are missing and this user may not install them.
    #[error("Packages are missing on this machine. An administrator can install them with:\n    sudo apt-get update && sudo apt-get install -y --no-install-recommends {}", packages.join(" "))]
    HostPackages {
        /// Names of the missing packages.
        packages: Vec<String>,
    },

    /// The package archive does not offer what a recipe needs.
    #[error("The package archive {problem}; {remedy}")]
    Archive {
        /// What is missing or does not agree.
        problem: String,
        /// What the user can do.
        remedy: &'static str,
    },

    /// A file of a package is not what the recipe expects.
    #[error("{} {problem}", path.display())]
    Content {
        /// The file in question.
        path: PathBuf,
        /// What is wrong with it, to be read after the file's name.
        problem: String,
    },

    /// `/dev/kvm` cannot be used although the processor offers virtualisation.
    #[error("{0}")]
    Kvm(String),

    /// The lab host did not get as far as the job, or lost it.
    #[error("The lab failed: {problem}; its kernel log is {}", log.display())]
    Lab {
        /// What is known about it.
        problem: String,
        /// Kernel log of the lab host.
        log: PathBuf,
    },
}

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the file's name to an I/O error.
pub(crate) trait Named<T> {
    fn named(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> Named<T> for std::io::Result<T> {
    fn named(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File { action, path: path.into(), source })
    }
}
