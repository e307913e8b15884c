//! `verbena run`

use std::path::PathBuf;

use crate::config::RunOptions;
use crate::error::{EXIT_STATUS_HELP, Exit, Result};
use crate::session;

const EXAMPLES: &str = "\
Examples:
  A kernel with an initramfs, on this terminal (Ctrl-A x ends it):
    verbena run --kernel vmlinuz --initramfs initrd.img --cmdline console=ttyS0

  Two CPUs, a root disk and a NIC with RDMA on a switch:
    verbena switch --socket /tmp/lab.sock &
    verbena run --kernel vmlinuz --initramfs initrd.img --cmdline 'console=ttyS0 root=/dev/vda' \\
        --cpus 2 --memory size=2G --disk path=root.img --net link=switch:/tmp/lab.sock

  The same from a file (vm.toml), with another memory size:
    verbena run --config vm.toml --memory 4G

    kernel = \"vmlinuz\"
    initramfs = \"initrd.img\"
    cmdline = \"console=ttyS0 root=/dev/vda\"
    cpus = 2
    [memory]
    size = \"2G\"
    [[disk]]
    path = \"root.img\"
    [[net]]
    link = \"switch:/tmp/lab.sock\"

Values of KEY=VALUE,… options may be quoted (path=\"a,b.img\"), and a key alone means KEY=on (readonly).";

/// Run a virtual machine.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS_HELP}"), after_help = EXIT_STATUS_HELP)]
pub(super) struct Command {
    /// Configuration file, TOML or JSON, with the names of these options; options given as flags win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: RunOptions,
}

impl Command {
    pub(super) fn run(self) -> Result<Exit> {
        let options = match &self.config {
            Some(path) => self.options.over(RunOptions::from_file(path)?),
            None => self.options,
        };
        session::run(&options.resolve()?)
    }
}
