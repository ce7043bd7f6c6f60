//! Points of kubelet's calls at which the role `node` is killed: the system calls with effects, as strace records
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use fastrand::Rng;
use tonic::Status;

use super::node::{MachineNode, NetworkVolume, ROOT};

/// System calls with effects outside of the process.
const EFFECTS: [&str; 13] = [
    "add_key",
    "fsconfig",
    "fsmount",
    "mkdirat",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "rename",
    "renameat",
    "renameat2",
    "umount2",
    "unlink",
    "unlinkat",
];
/// System calls with effects if their file is in one of [`EFFECTIVE_DIRECTORIES`].
const FILE_EFFECTS: [&str; 6] = ["fallocate", "fdatasync", "fsync", "ftruncate", "pwrite64", "write"];
const EFFECTIVE_DIRECTORIES: [&str; 3] = ["/dev/", "/sys/", ROOT];
/// The commands of `fsconfig` with effects. The others only set options of a mount.
const FSCONFIG_EFFECTS: [&str; 2] = ["FSCONFIG_CMD_CREATE", "FSCONFIG_CMD_RECONFIGURE"];

/// The system calls to record, as an argument of strace. `execve` names the programs.
pub(super) fn recorded_syscalls() -> String {
    ["execve"].iter().chain(&EFFECTS).chain(&FILE_EFFECTS).copied().collect::<Vec<_>>().join(",")
}

/// A call of kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KubeletCall {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

impl KubeletCall {
    /// In the order of a volume's life.
    pub(super) const ALL: [Self; 4] = [Self::Stage, Self::Publish, Self::Unpublish, Self::Unstage];

    pub(super) async fn make(self, node: &MachineNode<'_>, volume: &NetworkVolume) -> Result<(), Status> {
        match self {
            Self::Stage => node.stage(volume).await,
            Self::Publish => node.publish(volume).await,
            Self::Unpublish => node.unpublish(volume).await,
            Self::Unstage => node.unstage(volume).await,
        }
    }
}

/// A system call of a process, as strace and its option `-y` print it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TracedSyscall {
    /// The system call.
    pub(super) name: String,
    /// The path of the file, for [`FILE_EFFECTS`].
    pub(super) path: Option<String>,
    /// Its number among those of its thread with the same name and path, from 1.
    pub(super) number: u32,
}

impl fmt::Display for TracedSyscall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, path, number } = self;
        write!(f, "{name} {number}")?;
        path.as_ref().map_or(Ok(()), |path| write!(f, " of {path}"))
    }
}

/// A point of a call at which the role, or a program that it runs, is killed: before a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CrashPoint {
    pub(super) call: KubeletCall,
    /// The program; `None` for the role itself.
    program: Option<String>,
    pub(super) syscall: TracedSyscall,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, program, syscall } = self;
        write!(f, "{call:?}: {} before {syscall}", program.as_deref().unwrap_or("the role"))
    }
}

/// A line of a trace: thread, system call, and its arguments.
fn parse_line(line: &str) -> Option<(u32, &str, &str)> {
    let (thread, rest) = line.trim_start().split_once(' ')?;
    let (name, arguments) = rest.trim_start().split_once('(')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    // Other lines are signals, ends of processes, and the ends of calls that have a line already.
    if is_name { Some((thread.parse().ok()?, name, arguments)) } else { None }
}

/// The path in an argument such as `3</path>`.
fn descriptor_path(arguments: &str) -> Option<&str> {
    let (descriptor, rest) = arguments.split_once('<')?;
    if descriptor.is_empty() || !descriptor.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(rest.split_once('>')?.0)
}

/// The system calls of a trace, each with its thread and arguments.
fn traced_syscalls(trace: &str) -> Vec<(u32, TracedSyscall, &str)> {
    let mut counts: BTreeMap<(u32, &str, Option<&str>), u32> = BTreeMap::new();
    let mut syscalls = Vec::new();
    for (thread, name, arguments) in trace.lines().filter_map(parse_line) {
        let path = descriptor_path(arguments).filter(|_| FILE_EFFECTS.contains(&name));
        let number = counts.entry((thread, name, path)).or_default();
        *number += 1;
        let path = path.map(str::to_owned);
        syscalls.push((thread, TracedSyscall { name: name.to_owned(), path, number: *number }, arguments));
    }
    syscalls
}

fn has_effect(syscall: &TracedSyscall, arguments: &str) -> bool {
    let name = syscall.name.as_str();
    if name == "fsconfig" {
        return FSCONFIG_EFFECTS.iter().any(|command| arguments.contains(command));
    }
    let is_effective = |path: &str| EFFECTIVE_DIRECTORIES.iter().any(|directory| path.starts_with(directory));
    EFFECTS.contains(&name)
        || syscall.path.as_deref().is_some_and(|path| is_effective(path) && path != "/dev/null")
}

/// The crash points in the trace of a call. strace kills the first thread that reaches a point, so of threads with
/// the same system call, path and number only the first one counts.
pub(super) fn crash_points(call: KubeletCall, trace: &str) -> Vec<CrashPoint> {
    let mut programs: BTreeMap<u32, String> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut points = Vec::new();
    for (thread, syscall, arguments) in traced_syscalls(trace) {
        if syscall.name == "execve" {
            let program = arguments.split('"').nth(1).and_then(|path| path.rsplit('/').next());
            programs.insert(thread, program.unwrap_or_default().to_owned());
        } else if seen.insert(syscall.clone()) && has_effect(&syscall, arguments) {
            points.push(CrashPoint { call, program: programs.get(&thread).cloned(), syscall });
        }
    }
    points
}

/// The system call before which a process was killed in a trace: the last one of a killed thread that has not
/// returned. `None` if there is none. The other threads of a process die with it.
pub(super) fn killed_before(trace: &str) -> Option<TracedSyscall> {
    let killed: BTreeSet<u32> = trace
        .lines()
        .filter(|line| line.contains("killed by SIGKILL"))
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    let syscalls = traced_syscalls(trace).into_iter().rev();
    let has_returned =
        |arguments: &str| !arguments.ends_with("= ?") && !arguments.ends_with("<unfinished ...>");
    let mut unreturned =
        syscalls.filter(|(thread, _, arguments)| killed.contains(thread) && !has_returned(arguments));
    unreturned.next().map(|(_, syscall, _)| syscall)
}

/// Chooses up to `count` points, in turns of calls, of programs and system calls in each call, and of files and
/// numbers in each of these.
pub(super) fn choose(points: &[CrashPoint], count: usize, rng: &mut Rng) -> Vec<CrashPoint> {
    let mut calls: BTreeMap<KubeletCall, BTreeMap<_, Vec<CrashPoint>>> = BTreeMap::new();
    for point in points {
        let groups = calls.entry(point.call).or_default();
        groups.entry((&point.program, &point.syscall.name)).or_default().push(point.clone());
    }
    let mut lists = Vec::new();
    for groups in calls.into_values() {
        let mut groups: Vec<Vec<CrashPoint>> = groups.into_values().collect();
        groups.iter_mut().for_each(|group| rng.shuffle(group));
        lists.push(in_turns(groups, rng));
    }
    let mut chosen = in_turns(lists, rng);
    chosen.truncate(count);
    chosen
}

/// The first elements of all lists in a random order, then the second ones, and so on.
fn in_turns<T>(lists: Vec<Vec<T>>, rng: &mut Rng) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    rng.shuffle(&mut lists);
    let mut elements = Vec::new();
    while lists.iter().any(|list| list.len() > 0) {
        elements.extend(lists.iter_mut().filter_map(Iterator::next));
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"70 write(3</var/lib/kubelet/plugins/network/volumes/a.new>, "{", 9) = 9
70 fsync(3</var/lib/kubelet/plugins/network/volumes/a.new>) = 0
70 rename("/var/lib/kubelet/plugins/network/volumes/a.new", "/var/lib/kubelet/plugins/network/volumes/a.json") = 0
71 write(9<pipe:[12]>, "x", 1) = 1
70 write(4</dev/nvme-fabrics>, "transport=tcp"..., 99 <unfinished ...>
71 write(9<pipe:[12]>, "x", 1) = 1
70 <... write resumed>) = 99
72 execve("/usr/sbin/mkfs.ext4", ["mkfs.ext4"], 0x1 /* 2 vars */) = 0
72 pwrite64(3</dev/nvme0n1>, "\0"..., 4096, 0) = 4096
72 write(1<pipe:[13]>, "x", 1) = 1
72 pwrite64(3</dev/nvme0n1>, "\0"..., 4096, 8) = 4096
72 fsync(3</dev/nvme0n1>) = 0
72 +++ exited with 0 +++
70 fsconfig(5<anon_inode:[fscontext]>, FSCONFIG_SET_STRING, "source", "/dev/nvme0n1", 0) = 0
70 fsconfig(5<anon_inode:[fscontext]>, FSCONFIG_CMD_CREATE, NULL, NULL, 0) = 0
70 fsync(3</var/lib/kubelet/plugins/network/volumes/a.new>) = 0
"#;

    #[test]
    fn points_of_a_trace_are_its_effects() {
        let points = crash_points(KubeletCall::Stage, TRACE);
        let texts: Vec<String> = points.iter().map(ToString::to_string).collect();
        let record = "/var/lib/kubelet/plugins/network/volumes/a.new";
        assert_eq!(
            texts,
            [
                format!("Stage: the role before write 1 of {record}"),
                format!("Stage: the role before fsync 1 of {record}"),
                "Stage: the role before rename 1".to_owned(),
                "Stage: the role before write 1 of /dev/nvme-fabrics".to_owned(),
                "Stage: mkfs.ext4 before pwrite64 1 of /dev/nvme0n1".to_owned(),
                "Stage: mkfs.ext4 before pwrite64 2 of /dev/nvme0n1".to_owned(),
                "Stage: mkfs.ext4 before fsync 1 of /dev/nvme0n1".to_owned(),
                "Stage: the role before fsconfig 2".to_owned(),
                format!("Stage: the role before fsync 2 of {record}"),
            ]
        );
    }

    #[test]
    fn points_that_an_earlier_thread_has_reached_are_left_out() {
        let trace = "70 umount2(\"/a\", 0) = 0\n71 umount2(\"/b\", 0) = 0\n71 umount2(\"/c\", 0) = 0\n";
        let points = crash_points(KubeletCall::Unstage, trace);
        let numbers: Vec<u32> = points.iter().map(|point| point.syscall.number).collect();
        assert_eq!(numbers, [1, 2]);
    }

    #[test]
    fn the_killed_thread_names_the_point() {
        assert_eq!(killed_before(TRACE), None);
        let trace = "70 fsync(3</var/lib/kubelet/a>) = 0\n71 fsync(4</var/lib/kubelet/b>)   = ?\n\
             70 +++ killed by SIGKILL +++\n71 +++ killed by SIGKILL +++\n";
        let killed = killed_before(trace).map(|syscall| syscall.to_string());
        assert_eq!(killed.as_deref(), Some("fsync 1 of /var/lib/kubelet/b"));
    }

    #[test]
    fn chosen_points_are_distinct_and_spread_over_calls_and_system_calls() {
        let point = |call, name: &str, number| CrashPoint {
            call,
            program: None,
            syscall: TracedSyscall { name: name.to_owned(), path: None, number },
        };
        let mut points: Vec<CrashPoint> =
            (1..=50).map(|number| point(KubeletCall::Stage, "pwrite64", number)).collect();
        for call in KubeletCall::ALL {
            points.extend(["fsync", "rename"].map(|name| point(call, name, 1)));
        }
        for seed in 0..20 {
            let mut rng = Rng::with_seed(seed);
            let calls = |points: &[CrashPoint]| -> BTreeSet<KubeletCall> {
                points.iter().map(|point| point.call).collect()
            };
            assert_eq!(calls(&choose(&points, 3, &mut rng)).len(), 3);
            let chosen = choose(&points, 8, &mut rng);
            for call in KubeletCall::ALL {
                let of_call: BTreeSet<&str> = chosen
                    .iter()
                    .filter(|point| point.call == call)
                    .map(|point| point.syscall.name.as_str())
                    .collect();
                assert_eq!(of_call.len(), 2, "{call:?}: {chosen:?}");
            }
            let mut all = choose(&points, usize::MAX, &mut rng);
            assert_eq!(all.len(), points.len());
            all.sort_by_key(|point| (point.call, point.syscall.clone()));
            all.dedup();
            assert_eq!(all.len(), points.len(), "all are distinct");
        }
    }
}
