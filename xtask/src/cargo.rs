//! Calls cargo on this workspace.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Cargo, at the top of the workspace.
pub(crate) fn cargo<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    command.current_dir(manifest.parent().unwrap_or(manifest)).args(arguments);
    // Set by the cargo that started this program, and about this program only.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}
