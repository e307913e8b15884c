//! QEMU for the lab, from Debian's backports, with all its libraries.
//!
//! Debian 12's own QEMU (7.2) does not notice that an instruction was rewritten while another emulated processor was just
//! translating it, and goes on with the old one. Kernels rewrite their code while they run: the first virtual machine, for
//! one, puts a breakpoint into the scheduler for a moment. With the breakpoint translated and no longer in memory, every
//! processor takes it for ever, and the lab hangs. QEMU 8.1 has that mended.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive::{Archive, BACKPORTS};
use crate::cache::{Cache, Inputs};
use crate::error::Result;
use crate::packages::{Package, PackageSet};

/// Raised when this recipe would make something else from the same inputs.
const RECIPE: u32 = 1;

/// Name of the program, of its package's set and of the artefact.
const NAME: &str = "qemu-system-x86_64";

/// QEMU, unpacked below a directory of its own and not installed.
#[derive(Clone, Debug)]
pub(super) struct Emulator(PathBuf);

impl Cache {
    /// The lab's QEMU.
    pub(super) fn emulator(&self) -> Result<Emulator> {
        let wanted = vec!["qemu-system-x86".to_owned()];
        let resolve = |archive: &Archive| archive.closure(&wanted, Some(BACKPORTS));
        let set = PackageSet { name: NAME, wanted: wanted.clone(), resolve: &resolve };
        let inputs = |packages: &[Package]| Ok(Inputs::recipe(RECIPE).packages(packages));
        let recipe = |dir: &Path, packages: &[Package]| self.unpack(packages, dir);
        Ok(Emulator(self.make_from_packages(NAME, &set, inputs, recipe)?))
    }
}

impl Emulator {
    /// Adds the words that start it to a command: the dynamic linker is its own too, so that it fits the libraries.
    pub(super) fn add_to(&self, command: &mut Command) {
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|dir| self.0.join(dir));
        command.arg(libraries[0].join("ld-linux-x86-64.so.2")).args(["--argv0", NAME, "--library-path"]);
        command.arg(libraries.map(|dir| dir.display().to_string()).join(":"));
        command.arg(self.0.join("usr/bin").join(NAME));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.0.join(data));
        }
    }
}
