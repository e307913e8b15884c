//! What one run of the lab is told to do: a directory shared with it that carries scripts in and the result out.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{INSIDE_VARIABLE, LabHost, LabOptions};
use crate::cache::{BUILD_VARIABLE, Cache};
use crate::error::{Error, Named, Result};

/// Variables that a command in the lab inherits; further those that begin with one of [`INHERITED_PREFIXES`].
const INHERITED: &[&str] = &["HOME", "LANG", "LOGNAME", "PATH", "TERM", "USER"];
const INHERITED_PREFIXES: &[&str] = &["LC_", "RUST_", "VERBENA_"];

/// What names of control directories begin with.
const PREFIX: &str = "lab-run-";

/// Age at which what failed or killed runs left behind is removed.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The control directory of one run.
pub(super) struct Job {
    dir: TempDir,
}

impl Job {
    pub(super) fn prepare(
        cache: &Cache,
        lab: &LabHost,
        command: &[String],
        options: &LabOptions,
    ) -> Result<Self> {
        remove_old(cache.root());
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(cache.root());
        let job = Self { dir: dir.named("create", cache.root())? };
        job.write("setup", &setup_script(lab, options)?)?;
        job.write("job", &job_script(cache, command, options)?)?;
        Ok(job)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kernel log of the lab host.
    pub(super) fn kernel_log(&self) -> PathBuf {
        self.dir().join("kernel.log")
    }

    /// What QEMU says.
    pub(super) fn qemu_log(&self) -> PathBuf {
        self.dir().join("qemu.log")
    }

    /// What the command writes to its standard error, on its way out.
    pub(super) fn errors(&self) -> PathBuf {
        self.dir().join("errors")
    }

    /// Whether the lab host has come as far as the command.
    pub(super) fn has_begun(&self) -> bool {
        self.dir().join("begun").exists()
    }

    /// The command's exit status, or why there is none.
    pub(super) fn result(self, ended: &str) -> Result<u8> {
        let read = |name: &str| fs::read_to_string(self.dir().join(name)).ok();
        if let Some(status) = read("status").and_then(|text| text.trim().parse().ok()) {
            return Ok(status);
        }
        let said = read("failure").or_else(|| read("qemu.log")).unwrap_or_default();
        let problem = match said.trim() {
            "" => ended.to_owned(),
            said => format!("{ended} ({said})"),
        };
        let log = self.dir.keep().join("kernel.log");
        Err(Error::Lab { problem, log })
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.dir().join(name);
        fs::write(&path, content).named("write", path)
    }
}

/// Removes what runs of long ago left. What cannot be removed does no harm.
fn remove_old(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let is_run = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        if is_run && age.is_some_and(|age| age > KEPT) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Tag under which the n-th writable directory is shared.
pub(super) fn share_tag(index: usize) -> String {
    format!("writable{index}")
}

/// The directory through which `path`, a directory or a file, is shared.
pub(super) fn shared_directory(path: &Path) -> &Path {
    path.parent().filter(|_| path.is_file()).unwrap_or(path)
}

fn setup_script(lab: &LabHost, options: &LabOptions) -> Result<String> {
    let mut script = String::new();
    let modules = quoted(&lab.kernel.modules().to_string_lossy())?;
    script += &format!("ln -s {modules} /host/lib/modules/{}\n", quoted(&lab.kernel.release)?);
    for (index, path) in options.writable.iter().enumerate() {
        script += &share_lines(index, path)?;
    }
    for module in &options.modules {
        let module = quoted(module)?;
        script += &format!("modprobe {module} || fail \"Cannot load the module \"{module}\n");
    }
    Ok(script)
}

/// Makes the n-th writable path itself in the lab.
fn share_lines(index: usize, path: &Path) -> Result<String> {
    let (tag, target) = (share_tag(index), quoted(&format!("/host{}", path.display()))?);
    let Some(name) = path.file_name().filter(|_| path.is_file()) else {
        return Ok(format!("share {tag} {target} cache=none\n"));
    };
    // Only directories can be shared, so a file is lent out of its directory.
    let file = quoted(&format!("/{tag}/{}", name.to_string_lossy()))?;
    Ok(format!(
        "mkdir /{tag}\nshare {tag} /{tag} cache=none\n\
         mount --bind {file} {target} || fail \"Cannot lend \"{file}\n"
    ))
}

fn job_script(cache: &Cache, command: &[String], options: &LabOptions) -> Result<String> {
    let mut script = String::new();
    if !options.interactive {
        script += "stty raw -echo\nexec </dev/null 2>/dev/hvc1\nstty raw -echo <&2\n";
    } else {
        // The user's own terminal ends lines already: QEMU leaves its output settings alone.
        script += "stty -onlcr\n";
        if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdin()) {
            script += &format!("stty rows {} cols {}\n", size.ws_row, size.ws_col);
        }
    }
    let inherited = std::env::vars().filter(|(name, _)| is_inherited(name));
    let build = (BUILD_VARIABLE.to_owned(), cache.root().display().to_string());
    let inside = (INSIDE_VARIABLE.to_owned(), "1".to_owned());
    for (name, value) in inherited.chain([build, inside]).chain(options.environment.iter().cloned()) {
        script += &format!("export {name}={}\n", quoted(&value)?);
    }
    let here = std::env::current_dir().named("read", ".")?;
    script += &format!("cd {} || exit 126\n", quoted(&here.to_string_lossy())?);
    let words = command.iter().map(|word| quoted(word)).collect::<Result<Vec<_>>>()?;
    script += &format!("exec {}\n", words.join(" "));
    Ok(script)
}

fn is_inherited(name: &str) -> bool {
    INHERITED.contains(&name) || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn quoted(text: &str) -> Result<String> {
    shlex::try_quote(text).map(Into::into).map_err(|_| Error::Content {
        path: PathBuf::from(text.replace('\0', "\\0")),
        problem: "contains a NUL and cannot be passed to a command".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_command_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let command = ["printf", "%s|", "a b", "it's", "$HOME", ""].map(str::to_owned);
        let words = command.iter().map(|word| quoted(word).unwrap()).collect::<Vec<_>>().join(" ");
        let output =
            std::process::Command::new("sh").arg("-c").arg(&words).current_dir(&dir).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b|it's|$HOME||");
        assert!(quoted("a\0b").is_err());
    }

    #[test]
    fn of_a_writable_file_the_lab_gets_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, file) = (dir.path(), dir.path().join("a disk.img"));
        fs::write(&file, "content").unwrap();
        let (whole, lent) = (share_lines(0, dir).unwrap(), share_lines(1, &file).unwrap());
        assert_eq!(whole, format!("share writable0 /host{} cache=none\n", dir.display()));
        assert!(lent.contains("share writable1 /writable1 cache=none\n"), "{lent}");
        assert!(
            lent.contains(&format!("mount --bind '/writable1/a disk.img' '/host{}'", file.display())),
            "{lent}"
        );
        assert_eq!((shared_directory(dir), shared_directory(&file)), (dir, dir));
    }

    #[test]
    fn only_chosen_variables_are_inherited() {
        assert!(is_inherited("PATH") && is_inherited("RUST_LOG") && is_inherited("LC_ALL"));
        assert!(!is_inherited("AWS_SECRET") && !is_inherited("PATHS"));
    }
}
