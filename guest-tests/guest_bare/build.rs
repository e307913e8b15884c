//! Links the program to fixed addresses and without any start-up code: `verbena run --bare` starts it as it is.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
