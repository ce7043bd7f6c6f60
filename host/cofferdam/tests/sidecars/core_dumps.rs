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
    for (program, first) in [("cofferdam", &["run", "--role=provisioner"][..]), ("csi-provisioner", &[])] {
        let fixture = Fixture::start(Behavior::default()).await;
        let mut command = Command::new("sh");
        command.args(["-c", WITH_LARGEST_LIMIT]).arg(fixture.program(program)).args(first);
        command.args(fixture.connection_flags());
        if program == "cofferdam" {
            command.arg("--secret-namespaces=*");
        }
        let mut process = fixture.spawn(&mut command);
        fixture.create_claim("claim").await;
        let call = fixture.wait_for_calls("CreateVolume", 1).await;
        assert_eq!(call.password.as_deref(), Some(PASSWORD), "{program}: the process has the Secret");
        assert_eq!(core_dump(process.end_with("ABRT").await), (Some(SIGABRT), false), "{program}");
        let files = std::fs::read_dir(fixture.path()).unwrap();
        let names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().all(|name| !name.starts_with("core")), "{program}: {names:?}");
    }
}
