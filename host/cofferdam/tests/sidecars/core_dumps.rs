//! A process that has used a Secret writes no core dump.

use std::process::Command;

use crate::{
    driver::Behavior,
    fixture::{Fixture, PASSWORD, core_dump},
};

const SIGABRT: i32 = 6;

/// Runs its arguments with the largest limit of core dumps that the machine allows.
const WITH_LARGEST_LIMIT: &str = r#"ulimit -S -c "$(ulimit -H -c)"; exec "$0" "$@""#;

/// Without core dumps on this machine, the other test would pass whatever the program does.
#[test]
fn a_process_that_did_not_forbid_it_dumps_core() {
    let limit = Command::new("sh").args(["-c", "ulimit -H -c"]).output().unwrap().stdout;
    assert_ne!(
        limit, b"0\n",
        "the hard limit of core dumps is 0: run the tests with `ulimit -H -c unlimited`"
    );
    let directory = tempfile::TempDir::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", WITH_LARGEST_LIMIT, "sh", "-c", "kill -ABRT $$"]).current_dir(directory.path());
    assert_eq!(core_dump(shell.status().unwrap()), (Some(SIGABRT), true));
}

#[tokio::test]
async fn a_process_with_secrets_does_not_dump_core() {
    for (sidecar, role) in
        [("csi-provisioner", "provisioner"), ("csi-attacher", "attacher"), ("csi-resizer", "resizer")]
    {
        let role = format!("--role={role}");
        let run = ["run", &role, "--secret-namespaces=*"];
        for (program, arguments) in [("cofferdam", &run[..]), (sidecar, &[])] {
            let fixture = Fixture::start(Behavior::default()).await;
            let mut command = Command::new("sh");
            command.args(["-c", WITH_LARGEST_LIMIT]).arg(fixture.program(program)).args(arguments);
            let mut process = fixture.spawn(command.args(fixture.connection_flags()));
            let method = fixture.create_work(sidecar, "work").await;
            let call = fixture.wait_for_calls(method, 1).await;
            assert_eq!(call.password.as_deref(), Some(PASSWORD), "{program} {role}: it has the Secret");
            let ended = core_dump(process.end_with("ABRT").await);
            assert_eq!(ended, (Some(SIGABRT), false), "{program} {role}");
            let files = std::fs::read_dir(fixture.path()).unwrap();
            let names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            assert!(names.iter().all(|name| !name.starts_with("core")), "{program} {role}: {names:?}");
        }
    }
}
