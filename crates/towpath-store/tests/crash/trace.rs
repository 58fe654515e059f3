//! System calls of a writer, as `strace` recorded them, in the order of their ends.

use std::collections::HashMap;

/// Calls that are recorded: all that change files, move their offsets, or tell of an acknowledgement.
const CALLS: &str = "trace=open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,read,readv,write,writev,pwrite64,pwritev,\
    fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,truncate,ftruncate,\
    fallocate,copy_file_range,sendfile,sync_file_range,mmap,msync";

/// Arguments of `strace` that record into a file. Texts are complete and hexadecimal.
pub(crate) fn recorder(file: &str) -> Vec<&str> {
    vec!["strace", "-f", "-qq", "-xx", "-s", "8000000", "-o", file, "-e", CALLS, "-e", "signal=none"]
}

/// A system call, as it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// Arguments: numbers and flags as text; quoted ones are empty.
    pub(crate) arguments: Vec<String>,
    /// Contents of the quoted arguments, in order.
    pub(crate) texts: Vec<Vec<u8>>,
}

/// A recorded moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A call began. Its number is given again by its end.
    Begin(usize, Call),
    /// The call with this number ended with a result, without an error.
    End(usize, i64),
}

/// Reads a recording.
pub(crate) fn read(text: &str) -> Vec<Moment> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    let mut moments = Vec::new();
    let mut count = 0;
    // A call that another thread interrupted stands on two lines.
    let mut begun: HashMap<usize, String> = HashMap::new();
    for line in text.lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        if rest.starts_with("+++") {
            continue;
        }
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let number = open.remove(thread).unwrap();
            let (_, tail) = resumed.split_once("resumed>").unwrap();
            let whole = begun.remove(&number).unwrap() + tail;
            // Reads have their texts at the end only; nothing here needs those.
            moments.extend(result(&whole).map(|result| Moment::End(number, result)));
        } else if let Some(part) = rest.strip_suffix("<unfinished ...>") {
            moments.push(Moment::Begin(count, call(part)));
            open.insert(thread, count);
            begun.insert(count, part.trim_end().to_owned());
            count += 1;
        } else {
            moments.push(Moment::Begin(count, call(rest)));
            moments.extend(result(rest).map(|result| Moment::End(count, result)));
            count += 1;
        }
    }
    moments
}

/// Returns the result of a call; `None` for an error, and for one that never ended.
fn result(line: &str) -> Option<i64> {
    let (_, result) = line.rsplit_once(" = ")?;
    let number = result.split_whitespace().next()?;
    number.parse().ok().filter(|result| *result >= 0)
}

fn call(line: &str) -> Call {
    let (name, rest) = line.split_once('(').unwrap();
    let (arguments, texts) = arguments(rest);
    Call { name: name.to_owned(), arguments, texts }
}

/// Splits arguments at the commas that stand outside of quotes.
fn arguments(text: &str) -> (Vec<String>, Vec<Vec<u8>>) {
    let (mut arguments, mut texts) = (vec![String::new()], Vec::new());
    let mut rest = text;
    while let Some(at) = rest.find(['"', ',', ')']) {
        arguments.last_mut().unwrap().push_str(rest[..at].trim());
        match rest.as_bytes()[at] {
            b'"' => {
                let end = at + 1 + rest[at + 1..].find('"').unwrap();
                texts.push(bytes(&rest[at + 1..end]));
                rest = &rest[end + 1..];
            }
            b',' => {
                arguments.push(String::new());
                rest = &rest[at + 1..];
            }
            _ => return (arguments, texts),
        }
    }
    // A call that was interrupted may end in the middle of its arguments.
    arguments.last_mut().unwrap().push_str(rest.trim());
    (arguments, texts)
}

/// Reads `\x61\x62`.
fn bytes(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

#[test]
fn a_recording_is_read() {
    let text = "7 openat(AT_FDCWD, \"\\x2f\\x61\", O_RDWR|O_CREAT, 0666) = 5\n\
        7 write(5, \"\\x68\\x69\", 2 <unfinished ...>\n8 fsync(4)  = -1 EIO (Input/output error)\n\
        7 <... write resumed>) = 2\n7 close(5 <unfinished ...>\n7 <... close resumed>) = 0\n\
        8 +++ exited with 0 +++\n";
    let moments = read(text);
    let [
        Moment::Begin(0, open),
        Moment::End(0, 5),
        Moment::Begin(1, write),
        Moment::Begin(2, _),
        Moment::End(1, 2),
        Moment::Begin(3, close),
        Moment::End(3, 0),
    ] = &moments[..]
    else {
        panic!("{moments:?}")
    };
    assert_eq!(close.arguments, ["5"]);
    assert_eq!((&*open.name, &open.texts[..]), ("openat", &[b"/a".to_vec()][..]));
    assert_eq!((&*write.arguments[0], &write.texts[..]), ("5", &[b"hi".to_vec()][..]));
}
