//! The command line is that of the sidecar whose name the program has.

use std::process::Command;

use crate::{driver::Behavior, fixture::Fixture};

#[tokio::test]
async fn the_program_has_the_command_line_of_the_sidecar_of_its_name() {
    let fixture = Fixture::start(Behavior::default()).await;
    // Exit code, stdout and stderr of a sidecar that exits by itself.
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(fixture.program(program)).args(arguments).env_clear().output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let probe = ["--kubelet-registration-path=/p/csi.sock", "--mode=kubelet-registration-probe"];
    assert_eq!(run("csi-node-driver-registrar", &probe), (Some(0), String::new(), String::new()));
    let (code, stdout, _) = run("csi-attacher", &["-version"]);
    assert_eq!((code, stdout.trim_end()), (Some(0), concat!("csi-attacher ", env!("CARGO_PKG_VERSION"))));
    let (code, stdout, _) = run("livenessprobe", &["--help"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("--probe-timeout [default: 3s]"), "{stdout}");
    let (code, _, stderr) = run("csi-resizer", &["--resync=1m"]);
    let expected = "csi-resizer: flag provided but not defined: --resync: expected a flag of csi-resizer, as \
                    --help lists them\n";
    assert_eq!((code, stderr.as_str()), (Some(2), expected));
    let (code, _, stderr) =
        run("csi-provisioner", &["--leader-election", "--leader-election-renew-deadline=1m"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("the lease duration is 15s: expected more than the renew deadline, 1m"),
        "{stderr}"
    );
}
