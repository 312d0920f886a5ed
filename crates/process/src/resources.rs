//! Resource limits and resource usage of a process.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::ClockId;
use nix::unistd::Pid;

/// Lets this process and its children open as many files as the system allows it; returns how many those are.
///
/// # Errors
/// The system's; the limit stays as it was.
pub fn raise_open_files() -> io::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}

/// User and system time of all threads of a process so far, to the nanosecond: `/proc/PID/stat` counts in steps of 10 ms.
///
/// # Errors
/// There is no such process.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    Ok(ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()))?.now()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_open_files_becomes_the_hard_one() -> io::Result<()> {
        let most = raise_open_files()?;
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE)?, (most, most));
        Ok(())
    }

    #[test]
    fn cpu_time_grows_with_work_and_ends_with_the_process() -> io::Result<()> {
        let before = cpu_time(std::process::id())?;
        let mut sum = 0_u64;
        while cpu_time(std::process::id())? == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let mut child = std::process::Command::new("true").spawn()?;
        child.wait()?;
        assert!(cpu_time(child.id()).is_err());
        Ok(())
    }
}
