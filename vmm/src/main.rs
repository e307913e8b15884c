//! The `verbena` command: everything it does is in the library, so that tests reach it.

fn main() -> std::process::ExitCode {
    vmm::cli::main()
}
