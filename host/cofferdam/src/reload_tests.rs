use std::{
    collections::HashMap,
    fmt::Debug,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use cofferdam_backend::Call;
use cofferdam_domain::storage::CapacityQuery;
use prometheus_client::registry::Registry;
use tokio::{task::yield_now, time::advance};

use super::{test_server::Fixture, *};
use crate::{config::CliValues, drivers::DriverLoader};

/// A process with the component `memory` in a directory of its own, and a configuration file.
struct Process {
    directory: tempfile::TempDir,
    driver: LoadedDriver,
    reloader: Reloader,
}

/// Reads the configuration file of a directory.
fn config_source(directory: &Path) -> ConfigSource {
    let path = directory.join("cofferdam.toml");
    Box::new(move || {
        let mut values = CliValues::default();
        values.config_file = Some(path.clone());
        ResolvedConfig::for_cluster(&values, &HashMap::new())
    })
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
        let source = config_source(directory.path());
        Self::load(directory, source, change).await
    }

    /// As [`Process::start_with`], with the files of the directory. The first driver is [`Process::driver`].
    async fn load(directory: tempfile::TempDir, source: ConfigSource, change: impl FnOnce(&Path)) -> Self {
        let resolved = source().unwrap();
        let reloader = Reloader::new(source, &resolved);
        let loader = DriverLoader::new(&resolved.configuration, &mut Registry::default()).unwrap();
        let mut drivers = loader.load_all(&resolved.configuration).await.unwrap();
        change(directory.path());
        let reloader = reloader.with_drivers(&loader.engine, &drivers);
        Self { directory, driver: drivers.remove(0), reloader }
    }

    /// Checks for changes and returns the problem that was logged, and the capacity that the driver reports.
    async fn check(&mut self) -> (Option<String>, u64) {
        let sections = self.reloader.configuration.check();
        for driver in &mut self.reloader.drivers {
            driver.check(driver.section_of(&sections)).await;
        }
        (self.reloader.configuration.problem.clone(), capacity(&self.driver).await)
    }

    fn write(&self, name: &str, content: &[u8]) {
        // As kubelet does: another file under the same name.
        let new = self.directory.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, self.directory.path().join(name)).unwrap();
    }
}

/// The capacity that a driver reports.
async fn capacity(driver: &LoadedDriver) -> u64 {
    let call = Call::with_deadline(Duration::from_secs(60));
    driver.backend().get_capacity(call, CapacityQuery::default()).await.unwrap().available
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

/// Adds the section of the driver `hostile`, whose probe misbehaves in this way.
fn append_hostile_section(directory: &tempfile::TempDir, on_probe: &str) {
    let path = directory.path().join("cofferdam.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str(&format!(
        "[backend.hostile]\nfile = \"{0}/hostile.wasm\"\nsocket = \"{0}/hostile.sock\"\n\
         [backend.hostile.limits]\ndeadline-ms = 3600000\n\
         [backend.hostile.settings]\non-probe = \"{on_probe}\"\n",
        directory.path().display()
    ));
    std::fs::write(path, text).unwrap();
}

/// Stops tokio's clock until the result is dropped: only [`advance`] moves it. tokio advances a paused clock
/// by itself whenever it is idle, such as while a component runs, but not beside a blocking task.
fn stop_clock() -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    tokio::task::spawn_blocking(move || receiver.recv());
    tokio::time::pause();
    sender
}

/// Waits until `observe` returns `expected`. The limit is for a test that fails.
async fn wait_for<T: PartialEq + Debug>(expected: T, mut observe: impl AsyncFnMut() -> T) {
    let started = std::time::Instant::now();
    loop {
        let found = observe().await;
        if found == expected {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "found {found:?}, expected {expected:?}");
        yield_now().await;
    }
}

#[tokio::test]
async fn a_driver_check_that_never_ends_delays_no_other_check() {
    let directory = tempfile::TempDir::new().unwrap();
    std::fs::write(directory.path().join("memory.wasm"), cofferdam_carried::MEMORY).unwrap();
    std::fs::write(directory.path().join("hostile.wasm"), cofferdam_test_guests::HOSTILE).unwrap();
    std::fs::write(directory.path().join("password"), "first").unwrap();
    write_config(&directory, "1Gi", "");
    append_hostile_section(&directory, "return");
    let reads = Arc::new(AtomicUsize::new(0));
    let source: ConfigSource = Box::new({
        let (source, reads) = (config_source(directory.path()), Arc::clone(&reads));
        move || {
            reads.fetch_add(1, Ordering::Relaxed);
            source()
        }
    });
    let Process { directory, driver, reloader } = Process::load(directory, source, |_| {}).await;
    let wait_for_reads = |expected| wait_for(expected, async || reads.load(Ordering::Relaxed));
    let (credentials, connection) = Fixture::with_token().await;
    let reloader = reloader.with_connection(Some(connection));

    let _clock = stop_clock();
    let stop = CancellationToken::new();
    let running = tokio::spawn(reloader.run(stop.clone()));
    yield_now().await;
    write_config(&directory, "1Gi", "");
    append_hostile_section(&directory, "sleep");
    // Timers have a resolution of a millisecond.
    let to_next_check = CHECK_INTERVAL + Duration::from_millis(10);
    advance(to_next_check).await;
    wait_for_reads(2).await;
    assert_eq!(credentials.send().await.authorization, "Bearer first");
    credentials.write_user("token: second");
    write_config(&directory, "2Gi", "");
    append_hostile_section(&directory, "sleep");
    advance(to_next_check).await;
    wait_for("Bearer second".to_owned(), async || credentials.send().await.authorization).await;
    wait_for(2 << 30, async || capacity(&driver).await).await;
    stop.cancel();
    running.await.unwrap();
}

#[test]
fn a_process_without_drivers_reports_changed_settings_and_its_manifest() {
    let directory = tempfile::TempDir::new().unwrap();
    let write = |settings: &str, backend: &str| {
        let path = directory.path().display();
        let text = format!(
            "role = \"node\"\nmanifest = \"{path}/manifest.json\"\n{settings}\n[backend.{backend}]\n\
             file = \"{path}/array.wasm\"\n"
        );
        std::fs::write(directory.path().join("cofferdam.toml"), text).unwrap();
    };
    let write_manifest = |text: &str| std::fs::write(directory.path().join("manifest.json"), text).unwrap();
    write("", "array");
    write_manifest("{}");
    let source = config_source(directory.path());
    let resolved = source().unwrap();
    let mut reloader = Reloader::new(source, &resolved);
    let mut problem = || {
        reloader.configuration.check();
        reloader.configuration.problem.clone()
    };
    let needs_restart =
        |names| Some(format!("the configuration on disk has changed; this change needs a restart: {names}"));
    assert_eq!(problem(), None);
    write("", "other");
    assert_eq!(problem(), None, "a section of a driver that another process runs");
    write("timeout = \"7s\"", "other");
    assert_eq!(problem(), needs_restart("timeout"));
    write_manifest("{\"manifestVersion\": 1}");
    assert_eq!(problem(), needs_restart("manifest, timeout"));
    write("", "array");
    assert_eq!(problem(), needs_restart("manifest"));
    write("timeout = 7", "array");
    assert!(problem().unwrap().starts_with("the configuration on disk is not taken over: "));
}
