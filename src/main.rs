//! The `lockgate` program.

#[global_allocator]
static ALLOCATOR: lockgate::Allocator = lockgate::Allocator;

fn main() -> std::process::ExitCode {
    // First: between the gateway and each child stands this binary as its guard, which must
    // start in a millisecond and cost next to nothing.
    lockgate::guard();
    lockgate::main()
}
