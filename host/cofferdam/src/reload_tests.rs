use std::{collections::HashMap, path::Path};

use cofferdam_backend::Call;
use cofferdam_domain::storage::CapacityQuery;
use prometheus_client::registry::Registry;

use super::*;
use crate::config::CliValues;

/// A process with the component `memory` in a directory of its own, and a configuration file.
struct Process {
    directory: tempfile::TempDir,
    driver: LoadedDriver,
    reloader: Reloader,
}

impl Process {
    async fn start() -> Self {
        Self::start_with(tempfile::TempDir::new().unwrap(), |_| {}).await
    }

    /// As [`Process::start`], with a change of the directory after the driver is loaded.
    async fn start_with(directory: tempfile::TempDir, change: impl FnOnce(&Path)) -> Self {
        std::fs::write(directory.path().join("memory.wasm"), cofferdam_carried::MEMORY).unwrap();
        std::fs::write(directory.path().join("password"), "first").unwrap();
        write_config(&directory, "1Gi", "");
        let path = directory.path().join("cofferdam.toml");
        let resolve = move || {
            let mut values = CliValues::default();
            values.config_file = Some(path.clone());
            ResolvedConfig::for_cluster(&values, &HashMap::new())
        };
        let resolved = resolve().unwrap();
        let files = section_files(&resolved.configuration);
        let loader = DriverLoader::new(&resolved.configuration, &mut Registry::default()).unwrap();
        let mut drivers = loader.load_all(&resolved.configuration).await.unwrap();
        change(directory.path());
        let reloader = Reloader::new(loader, Box::new(resolve), &resolved, files, &drivers);
        Self { directory, driver: drivers.remove(0), reloader }
    }

    /// Checks for changes and returns the problem that was logged, and the capacity that the driver reports.
    async fn check(&mut self) -> (Option<String>, u64) {
        self.reloader.check().await;
        let backend = self.driver.backend();
        let call = Call::with_deadline(Duration::from_secs(60));
        let capacity = backend.get_capacity(call, CapacityQuery::default()).await.unwrap();
        (self.reloader.problem.clone(), capacity.available)
    }

    fn write(&self, name: &str, content: &[u8]) {
        // As kubelet does: another file under the same name.
        let new = self.directory.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, self.directory.path().join(name)).unwrap();
    }
}

fn write_config(directory: &tempfile::TempDir, capacity: &str, settings: &str) {
    let path = directory.path().display();
    let text = format!(
        "role = \"csi-server\"\ncompilation-cache = \"off\"\n{settings}\n[backend.array]\n\
         file = \"{path}/memory.wasm\"\nsocket = \"{path}/csi.sock\"\n[backend.array.settings]\n\
         capacity = \"{capacity}\"\n[backend.array.secrets]\npassword = \"{path}/password\"\n"
    );
    std::fs::write(directory.path().join("cofferdam.toml"), text).unwrap();
}

#[tokio::test]
async fn changes_of_a_section_are_taken_over() {
    let mut process = Process::start().await;
    assert_eq!(process.check().await, (None, 1 << 30));
    write_config(&process.directory, "2Gi", "");
    assert_eq!(process.check().await, (None, 2 << 30));
    let before = process.reloader.drivers[0].files.clone();
    process.write("password", b"second");
    assert_eq!(process.check().await, (None, 2 << 30));
    assert_ne!(process.reloader.drivers[0].files, before, "the reload has read the new file");
}

#[tokio::test]
async fn changes_that_fail_or_need_a_restart_leave_the_driver_as_it_is() {
    let mut process = Process::start().await;
    write_config(&process.directory, "1Gi", "timeout = \"7s\"\n");
    let (problem, capacity) = process.check().await;
    let expected = "the configuration on disk has changed; this change needs a restart: timeout";
    assert_eq!((problem.as_deref(), capacity), (Some(expected), 1 << 30));
    write_config(&process.directory, "1Gi", "timeout = 7");
    let (problem, capacity) = process.check().await;
    assert!(problem.unwrap().starts_with("the configuration on disk is not taken over: "));
    assert_eq!(capacity, 1 << 30);
    write_config(&process.directory, "many", "");
    assert_eq!(process.check().await, (None, 1 << 30));
    let driver_problem = |process: &Process| process.reloader.drivers[0].problem.clone().unwrap_or_default();
    assert!(driver_problem(&process).contains("is not ready, and the running component is"));
    process.write("memory.wasm", &cofferdam_carried::MEMORY[..100]);
    assert_eq!(process.check().await, (None, 1 << 30));
    assert!(driver_problem(&process).contains("is not a valid WebAssembly component"));
    process.write("memory.wasm", cofferdam_carried::MEMORY);
    write_config(&process.directory, "3Gi", "");
    assert_eq!(process.check().await, (None, 3 << 30), "a change after a failure is taken over");
}

#[tokio::test]
async fn a_file_that_changes_while_the_driver_is_loaded_is_read_again() {
    let directory = tempfile::TempDir::new().unwrap();
    let mut process = Process::start_with(directory, |directory| {
        std::fs::write(directory.join("memory.wasm"), &cofferdam_carried::MEMORY[..100]).unwrap();
    })
    .await;
    process.check().await;
    let problem = process.reloader.drivers[0].problem.clone().unwrap_or_default();
    assert!(problem.contains("is not a valid WebAssembly component"), "{problem}");
}
