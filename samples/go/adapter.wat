;; What Go's runtime asks of WASI preview 1, answered inside the component: nothing of it reaches the host.
;;
;; The usual adapter of preview 1 does not work with Go: it allocates through `cabi_realloc` before Go's runtime has begun, or,
;; told to grow the memory itself, grows what Go's allocator takes for its own. This one owns no memory.
;;
;; There is no clock: time begins at 0, moves with every look at it, and jumps when somebody sleeps. There is no randomness: Go
;; seeds its maps from the time, and crypto/rand ends the call. Real time and randomness are the import `ambient`'s. What is
;; printed is swallowed.
(module
  (import "env" "memory" (memory 0))

  ;; Nanoseconds.
  (global $now (mut i64) (i64.const 0))

  ;; Errors: 8 is EBADF, 52 is ENOSYS.

  (func (export "clock_time_get") (param $clock i32) (param $precision i64) (param $result i32) (result i32)
    (global.set $now (i64.add (global.get $now) (i64.const 1000)))
    (i64.store (local.get $result) (global.get $now))
    (i32.const 0))

  ;; Sleeping: the first subscription is answered as if its time had come. Go makes one subscription, of a relative time-out.
  (func (export "poll_oneoff")
    (param $subscriptions i32) (param $events i32) (param $count i32) (param $result i32) (result i32)
    (if (i32.eqz (i32.load8_u offset=8 (local.get $subscriptions)))
      (then (global.set $now (i64.add (global.get $now) (i64.load offset=24 (local.get $subscriptions))))))
    (i64.store (local.get $events) (i64.load (local.get $subscriptions)))
    (i32.store16 offset=8 (local.get $events) (i32.const 0))
    (i32.store8 offset=10 (local.get $events) (i32.load8_u offset=8 (local.get $subscriptions)))
    (i32.store (local.get $result) (i32.const 1))
    (i32.const 0))

  ;; Printing: everything is taken.
  (func (export "fd_write")
    (param $fd i32) (param $pieces i32) (param $count i32) (param $result i32) (result i32)
    (local $taken i32)
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $taken (i32.add (local.get $taken) (i32.load offset=4 (local.get $pieces))))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $result) (local.get $taken))
    (i32.const 0))

  ;; Neither arguments nor environment: no entries, no bytes.
  (func $no_sizes (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $no_sizes))
  (export "environ_sizes_get" (func $no_sizes))
  (func $no_entries (param i32 i32) (result i32) (i32.const 0))
  (export "args_get" (func $no_entries))
  (export "environ_get" (func $no_entries))

  (func (export "sched_yield") (result i32) (i32.const 0))
  (func (export "proc_exit") (param i32) (unreachable))
  (func (export "random_get") (param i32 i32) (result i32) (i32.const 52))

  ;; No files and no sockets, whatever a package of Go's would do with them. What a program does not import is left out of its
  ;; component.
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_close") (param i32) (result i32) (i32.const 8))
  (func (export "fd_datasync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pread") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_read") (param i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_renumber") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_sync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_tell") (param i32 i32) (result i32) (i32.const 8))
  (func (export "path_create_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_get") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "path_readlink") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_remove_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_rename") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_symlink") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_unlink_file") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_accept") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_recv") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_send") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_shutdown") (param i32 i32) (result i32) (i32.const 8))
)
