//! The system's clock, random numbers and syncs, as the threads of a simulation see them.
//!
//! The functions of the C library that the standard library calls for them are defined here, so the program's own code
//! runs as it is. Threads that are not part of the simulation, such as those of the storage engine, get the system's
//! answers: nothing that they do is seen by the simulation.
#![allow(unsafe_code, reason = "functions of the C library can only be replaced by unsafe ones")]

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::disk::{self, Room};
use crate::recovery;

/// Wall clock at the start of every simulation, in seconds since 1970.
pub const START: i64 = 1_800_000_000;
/// Monotonic clock at the start, in seconds. Not zero: programs subtract durations from it.
const UPTIME: i64 = 1_000_000;

/// Factor by which a journal is full earlier than the engine's constant says: at 250 kB, some hours of publishing.
///
/// Every start reads the journal, so one of days would fill the simulation with little else. And no journal of a
/// simulated day would ever be full.
const JOURNAL_SCALE: i64 = 256;

/// Pause between two looks at a thread that works for the runtime's thread.
const LOOK: Duration = Duration::from_micros(50);

/// Shortest pause between two attempts to open a store again, in seconds. Other sleeps are shorter, and take no time.
const SHORTEST_PAUSE: i64 = 1;

/// Time since the start, in nanoseconds.
static ELAPSED: AtomicU64 = AtomicU64::new(0);
/// Error of the wall clock, in seconds.
static SKEW: AtomicI64 = AtomicI64::new(0);
/// Seed of the simulation.
static SEED: AtomicU64 = AtomicU64::new(0);
/// True from the start of the simulation.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
/// Start by the runtime's clock, once there is a runtime.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Part of a thread in the simulation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    None,
    /// The thread of the runtime, whose clock is the simulation's.
    Runtime,
    /// A store's commit thread, which runs while the runtime's thread waits for it.
    Commit,
    /// The thread that opens a store again after a failed write, while the runtime's thread waits for it.
    Recovery,
    /// A thread that does a piece of work for the runtime's thread, which waits for it.
    Helper,
}

/// Number of the random numbers of threads that open a store again. Stores are numbered from zero.
const RECOVERY: u64 = u64::MAX;
/// Number of the random numbers of helpers.
const HELPER: u64 = u64::MAX - 1;

thread_local! {
    static PART: Cell<Part> = const { Cell::new(Part::None) };
    /// State of the random numbers. Each thread has its own: a store whose machine is off may still ask for some, and at
    /// what moment it does differs from run to run.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// True while the runtime's clock is read, which may ask for the time itself.
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread the simulation's.
pub fn begin(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    IS_ACTIVE.store(true, Ordering::Relaxed);
    PART.set(Part::Runtime);
    RANDOM.set(seed);
    fastrand::seed(seed);
}

/// Makes this thread part of the simulation, with random numbers of its own.
fn join(part: Part, number: u64) {
    PART.set(part);
    // An odd factor: different numbers give different states.
    let state = SEED.load(Ordering::Relaxed) ^ number.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    RANDOM.set(state);
    fastrand::seed(state);
}

/// Does a piece of work on a thread of its own, and waits for it.
///
/// The standard library makes the keys of a thread's hash maps from one another. Opening a store makes more or fewer maps
/// with the tables that its engine's threads have left, so it must not happen on the runtime's thread.
pub fn run_apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let helper = || {
        join(Part::Helper, HELPER);
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(helper).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Follows the clock of the runtime from now on. Call it in the runtime.
pub fn follow_runtime() {
    let _ = ORIGIN.set(Instant::now());
}

/// Makes this thread the commit thread of the store with this number.
pub fn join_as_commit_thread(store: u64) {
    if PART.get() == Part::None {
        join(Part::Commit, store);
    }
}

/// Returns true on a commit thread of the simulation.
pub fn is_commit_thread() -> bool {
    PART.get() == Part::Commit
}

/// Returns the time since the start.
pub fn elapsed() -> Duration {
    if PART.get() == Part::Runtime && !IS_READING.replace(true) {
        if let Some(origin) = ORIGIN.get() {
            ELAPSED.store(origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        IS_READING.set(false);
    }
    Duration::from_nanos(ELAPSED.load(Ordering::Relaxed))
}

/// Sets the wall clock ahead or back, by seconds.
pub fn set_skew(seconds: i64) {
    SKEW.store(seconds, Ordering::Relaxed);
}

fn simulated(clock: libc::clockid_t) -> Option<libc::timespec> {
    if PART.try_with(Cell::get).unwrap_or(Part::None) == Part::None {
        return None;
    }
    let origin = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => START + SKEW.load(Ordering::Relaxed),
        libc::CLOCK_MONOTONIC | libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_BOOTTIME => UPTIME,
        _ => return None,
    };
    let elapsed = elapsed();
    let (tv_sec, tv_nsec) = (origin + elapsed.as_secs() as i64, i64::from(elapsed.subsec_nanos()));
    Some(libc::timespec { tv_sec, tv_nsec })
}

/// Stands in for the C library's function.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    match simulated(clock) {
        Some(now) => {
            // SAFETY: the caller passes a place for the time.
            unsafe { time.write(now) };
            0
        }
        // SAFETY: the call is passed on as it is.
        None => unsafe { pass(libc::SYS_clock_gettime, [clock as usize, time as usize, 0, 0]) },
    }
}

/// Stands in for the C library's function.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if PART.try_with(Cell::get).unwrap_or(Part::None) == Part::None {
        // SAFETY: the call is passed on as it is.
        return unsafe { pass(libc::SYS_getrandom, [buffer as usize, length, flags as usize, 0]) as isize };
    }
    for at in 0..length {
        // SAFETY: the caller passes a buffer of this length.
        unsafe { buffer.cast::<u8>().add(at).write(next_random() as u8) };
    }
    length as isize
}

/// Stands in for the C library's function, by which some libraries ask for random numbers. All other calls are the
/// kernel's.
///
/// The C library's takes as many arguments as a call has. Both machines pass them as if it took all.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    one: usize,
    two: usize,
    three: usize,
    four: usize,
    five: usize,
    six: usize,
) -> c_long {
    if number == libc::SYS_getrandom && PART.try_with(Cell::get).unwrap_or(Part::None) != Part::None {
        // SAFETY: the arguments are those of the call.
        return unsafe { getrandom(one as *mut c_void, two, three as c_uint) as c_long };
    }
    // SAFETY: as the caller's.
    let result = unsafe { kernel(number, [one, two, three, four, five, six]) };
    if (-4095..0).contains(&result) {
        // SAFETY: the place of this thread's error number is valid.
        unsafe { *libc::__errno_location() = -result as c_int };
        return -1;
    }
    result as c_long
}

/// Passes a call on to the kernel.
unsafe fn pass(number: c_long, [one, two, three, four]: [usize; 4]) -> c_int {
    // SAFETY: as the caller's.
    unsafe { syscall(number, one, two, three, four, 0, 0) as c_int }
}

#[cfg(target_arch = "x86_64")]
unsafe fn kernel(number: c_long, arguments: [usize; 6]) -> isize {
    let [one, two, three, four, five, six] = arguments;
    let result: isize;
    // SAFETY: the kernel's convention for system calls; `syscall` changes rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") one,
            in("rsi") two,
            in("rdx") three,
            in("r10") four,
            in("r8") five,
            in("r9") six,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn kernel(number: c_long, arguments: [usize; 6]) -> isize {
    let [one, two, three, four, five, six] = arguments;
    let result: isize;
    // SAFETY: the kernel's convention for system calls.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") one => result,
            in("x1") two,
            in("x2") three,
            in("x3") four,
            in("x4") five,
            in("x5") six,
            options(nostack),
        );
    }
    result
}

/// Next number of SplitMix64.
fn next_random() -> u64 {
    let mut z = RANDOM.get();
    RANDOM.set(z.wrapping_add(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) >> 16
}

/// Stands in for the C library's function.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(file: RawFd) -> c_int {
    // SAFETY: as the caller's.
    unsafe { sync(file, libc::SYS_fdatasync) }
}

/// Stands in for the C library's function.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(file: RawFd) -> c_int {
    // SAFETY: as the caller's.
    unsafe { sync(file, libc::SYS_fsync) }
}

unsafe fn sync(file: RawFd, call: i64) -> c_int {
    if !IS_ACTIVE.load(Ordering::Relaxed) {
        // SAFETY: the call is passed on as it is.
        return unsafe { pass(call, [file as usize, 0, 0, 0]) };
    }
    // The files of a simulation are in memory: only the model knows what is durable.
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{file}")) else { return 0 };
    match disk::synced(&path, || end_of_data(file)) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: the place of this thread's error number is valid.
            unsafe { *libc::__errno_location() = error };
            -1
        }
    }
}

/// Stands in for the C library's function: a disk that is full takes what fits on it.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: RawFd, bytes: *const c_void, length: usize) -> isize {
    let fits = match room(file, length) {
        Room::All => length,
        Room::Part(fits) => fits,
        Room::Pretended => return length as isize,
        Room::None => return no_space() as isize,
    };
    // SAFETY: the call is passed on as it is, or for the first bytes.
    unsafe { syscall(libc::SYS_write, file as usize, bytes as usize, fits, 0, 0, 0) as isize }
}

/// Stands in for the C library's function: a file does not grow on a disk that is full.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(file: RawFd, length: i64) -> c_int {
    // SAFETY: an empty state is a valid one, and the call only looks at the descriptor.
    let now = unsafe {
        let mut state: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &raw mut state) == 0 { state.st_size } else { 0 }
    };
    let is_ours = PART.try_with(Cell::get).unwrap_or(Part::None) != Part::None;
    if is_ours && length > now && room(file, (length - now) as usize) == Room::None {
        return no_space();
    }
    // SAFETY: the call is passed on as it is.
    unsafe { pass(libc::SYS_ftruncate, [file as usize, length as usize, 0, 0]) }
}

/// Stands in for the C library's function: the engine's worker finds its journals fuller than they are.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lseek64(file: RawFd, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the call is passed on as it is.
    let at = unsafe { syscall(libc::SYS_lseek, file as usize, offset as usize, whence as usize, 0, 0, 0) };
    let is_look = offset == 0 && whence == libc::SEEK_CUR && at > 0;
    if is_look && is_worker() && is_journal(file) { at * JOURNAL_SCALE } else { at }
}

/// Returns true on a thread of the storage engine.
fn is_worker() -> bool {
    let is_apart = PART.try_with(Cell::get).unwrap_or(Part::None) == Part::None;
    is_apart && IS_ACTIVE.load(Ordering::Relaxed) && std::thread::current().name() == Some("fjall:worker")
}

fn is_journal(file: RawFd) -> bool {
    let path = std::fs::read_link(format!("/proc/self/fd/{file}"));
    path.is_ok_and(|path| path.extension().is_some_and(|extension| extension == "jnl"))
}

fn no_space() -> c_int {
    // SAFETY: the place of this thread's error number is valid.
    unsafe { *libc::__errno_location() = libc::ENOSPC };
    -1
}

/// Returns how much of a write has room on its disk.
fn room(file: RawFd, length: usize) -> Room {
    if !disk::is_any_full() {
        return Room::All;
    }
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{file}")) else { return Room::All };
    let part = PART.try_with(Cell::get).unwrap_or(Part::None);
    // Threads that are not part of the simulation have room: when they write differs from run to run. But what was left
    // in the buffer of a journal may be written by any thread that drops it.
    if part == Part::None && path.extension().is_none_or(|extension| extension != "jnl") {
        return Room::All;
    }
    disk::room(&path, length, || bytes_in_place(file))
}

/// Returns the number of bytes from the position of the writer on that have their place on the disk already.
fn bytes_in_place(file: RawFd) -> usize {
    // SAFETY: the calls only look at the descriptor, and bring its position back.
    unsafe {
        if libc::fcntl(file, libc::F_GETFL) & libc::O_APPEND != 0 {
            return 0;
        }
        let at = libc::lseek(file, 0, libc::SEEK_CUR);
        // A hole, and all behind the end of the file, has no place.
        let has_data = libc::lseek(file, at, libc::SEEK_DATA) == at;
        let end = if has_data { libc::lseek(file, at, libc::SEEK_HOLE) } else { at };
        libc::lseek(file, at, libc::SEEK_SET);
        (end - at).max(0) as usize
    }
}

/// Returns the end of what was written to a file: its end if it is only appended to, else the position of the writer.
fn end_of_data(file: RawFd) -> u64 {
    // SAFETY: the calls only look at the descriptor.
    unsafe {
        let whence = match libc::fcntl(file, libc::F_GETFL) & libc::O_APPEND {
            0 => libc::SEEK_CUR,
            _ => libc::SEEK_END,
        };
        libc::lseek(file, 0, whence).max(0) as u64
    }
}

/// Passes a sleep of any thread. One that opens a store again joins the simulation by it, and its long sleeps take
/// simulated time.
fn pass_sleep(time: *const libc::timespec) {
    // SAFETY: the caller of the C library's function passes a valid time.
    let length = unsafe { time.as_ref() }.map_or(0, |time| time.tv_sec);
    if std::thread::current().name() != Some("towpath-recover") {
        return std::thread::yield_now();
    }
    if PART.get() == Part::None {
        join(Part::Recovery, RECOVERY);
    }
    if length < SHORTEST_PAUSE {
        return std::thread::yield_now();
    }
    recovery::pause(Duration::from_secs(length as u64));
}

/// Stands in for the C library's function: in a simulation no thread sleeps by the system's clock.
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int {
    if IS_ACTIVE.load(Ordering::Relaxed) {
        pass_sleep(time);
        return 0;
    }
    // SAFETY: the call is passed on as it is.
    unsafe { pass(libc::SYS_nanosleep, [time as usize, left as usize, 0, 0]) }
}

/// Stands in for the C library's function, as [`nanosleep`].
///
/// # Safety
///
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    if IS_ACTIVE.load(Ordering::Relaxed) {
        pass_sleep(time);
        return 0;
    }
    // SAFETY: the call is passed on as it is.
    unsafe { pass(libc::SYS_clock_nanosleep, [clock as usize, flags as usize, time as usize, left as usize]) }
}

/// Lets other threads work for a moment by the machine's clock, in which no simulated time passes.
pub fn let_others_work() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
    // SAFETY: the time is valid for the call, which writes nothing.
    unsafe { pass(libc::SYS_nanosleep, [(&raw const pause) as usize, 0, 0, 0]) };
}

/// Has the program's HTTPS clients trust one authority, and not those of the machine.
///
/// Each node and follower sets up clients, none of which uses TLS here. To read a hundred certificates takes them longer
/// than all else.
///
/// # Errors
///
/// If the file cannot be written.
pub fn trust_one_authority(scratch: &Path) -> std::io::Result<()> {
    let path = scratch.join("authority.pem");
    std::fs::create_dir_all(scratch)?;
    std::fs::write(&path, include_str!("authority.pem"))?;
    // SAFETY: the simulation has not begun, so no other thread reads the environment.
    unsafe {
        std::env::set_var("SSL_CERT_FILE", path);
        std::env::remove_var("SSL_CERT_DIR");
    }
    Ok(())
}

/// Folder of the simulation's files, in memory where the system has such a place.
pub fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    base.join(format!("towpath-simulation-{}", std::process::id()))
}
