//! Checks of the Debian package: lintian, and a life of it in a Debian of its own: installed, upgraded, removed, purged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::deb;
use crate::release;
use crate::run::{as_root, root, status, target};
use crate::setup;

/// Life of the package in a new Debian, each step with what must hold after it. `$1` is the earlier package, `$2` the
/// later one.
const LIFE: &str = r#"
step() { echo "- $*"; }
owner() { stat -c '%U:%G %a' "$1"; }
expect() { [ "$2" = "$3" ] || { echo "$1: $2, not $3" >&2; exit 1; }; }
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

step installed
dpkg -i "$1"
expect user "$(getent passwd towpath | cut -d: -f6,7)" /var/lib/towpath:/usr/sbin/nologin
expect configuration "$(owner /etc/towpath/towpath.toml)" 'root:towpath 640'
expect folder "$(owner /etc/towpath/feeds.d)" 'root:towpath 750'
towpath --version
towpath config check --config /etc/towpath/towpath.toml
test -f /usr/lib/systemd/system/towpath.service || test -f /lib/systemd/system/towpath.service
# Neither enabled nor started.
test ! -e /etc/systemd/system/multi-user.target.wants/towpath.service
test -f /usr/share/man/man1/towpath.1.gz
bash -n /usr/share/bash-completion/completions/towpath

step 'serves as its user, with its configuration'
mkdir -p /var/lib/towpath
chown towpath: /var/lib/towpath
chmod 700 /var/lib/towpath
printf '[[feed]]\nid = "kept"\n' > /etc/towpath/feeds.d/kept.toml
as_service() { setpriv --reuid towpath --regid towpath --clear-groups "$@"; }
as_service towpath put kept first --title Kept --config /etc/towpath/towpath.toml

step upgraded
sed -i 's/8080/8099/' /etc/towpath/towpath.toml
echo 'TOWPATH_LOG=debug' >> /etc/default/towpath
dpkg -i "$2"
grep -q 8099 /etc/towpath/towpath.toml
grep -q TOWPATH_LOG=debug /etc/default/towpath
expect configuration "$(owner /etc/towpath/towpath.toml)" 'root:towpath 640'
as_service towpath status --format json --config /etc/towpath/towpath.toml | grep -q '"kept"'

step removed
dpkg --remove towpath
test ! -e /usr/bin/towpath
grep -q 8099 /etc/towpath/towpath.toml
test -d /var/lib/towpath

step 'installed again, with the configuration and the log from before'
dpkg -i "$2"
grep -q 8099 /etc/towpath/towpath.toml
as_service towpath status --format json --config /etc/towpath/towpath.toml | grep -q '"kept"'

step purged
dpkg --purge towpath
test ! -e /etc/towpath
test ! -e /etc/default/towpath
test -d /var/lib/towpath
expect 'the package' "$(dpkg-query -W -f '${Status}' towpath 2>/dev/null || true)" ''
left="$(find / -xdev -path /proc -prune -o -path /var/lib/towpath -prune -o -name '*towpath*' -print | grep -v '^/packages' || true)"
expect 'files that are left' "$left" ''
"#;

/// As [`check`]; a machine on which its tools cannot be installed leaves it out, and the reason is printed.
pub(crate) fn check_if_possible(program: &Path) -> Result<(), String> {
    match prepare() {
        Ok(()) => check(program),
        Err(reason) => {
            println!("left out: lintian and the life of the Debian package: {reason}");
            Ok(())
        }
    }
}

/// Installs what the check takes, which lasts minutes the first time.
fn prepare() -> Result<(), String> {
    if !setup::has_namespaces() {
        return Err("this user may not create namespaces".into());
    }
    setup::debian()?;
    release::deb()?;
    system().map(drop)
}

/// Makes two packages of a program, judges the first, and lets them live in a system of their own.
pub(super) fn check(program: &Path) -> Result<(), String> {
    prepare()?;
    deb::stage(program)?;
    let folder = target().join("debian/checked");
    // Their compression takes seconds instead of a minute.
    let earlier = deb::build("1", &folder, &["--fast"])?;
    lintian(&earlier)?;
    let later = deb::build("2", &folder, &["--fast"])?;
    live(&earlier, &later)
}

/// Errors and warnings of lintian fail. `packaging/debian/lintian-overrides` has those that do not, with their reasons.
fn lintian(package: &Path) -> Result<(), String> {
    let options = ["--fail-on", "error,warning", "--allow-root", "--info", "--no-cfg"];
    status(Command::new("lintian").args(options).arg(package))
}

/// Runs [`LIFE`] in a new copy of a minimal Debian.
fn live(earlier: &Path, later: &Path) -> Result<(), String> {
    let system = system()?;
    let folder = target().join("debian/system");
    let name = |package: &Path| package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let script = format!(
        "set -e; rm -rf --one-file-system '{folder}'; mkdir '{folder}'; tar -C '{folder}' -xf '{system}'\n\
         mkdir '{folder}/packages'; cp '{earlier}' '{later}' '{folder}/packages'\n\
         unshare --net --mount --pid --fork chroot '{folder}' bash -c \"$LIFE\" life '/packages/{}' '/packages/{}'\n\
         rm -rf --one-file-system '{folder}'",
        name(earlier),
        name(later),
        folder = folder.display(),
        system = system.display(),
        earlier = earlier.display(),
        later = later.display(),
    );
    status(as_root("sh", &[("LIFE", LIFE)]).args(["-c", &script]))
}

/// An archive of a minimal Debian of this machine's release. It is made once.
fn system() -> Result<PathBuf, String> {
    let release = fs::read_to_string("/etc/os-release").map_err(|e| format!("/etc/os-release: {e}"))?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.ok_or("this system has no VERSION_CODENAME, as Debian has")?;
    let archive = target().join(format!("debian-{name}.tar"));
    if !archive.exists() {
        let part = archive.with_extension("part.tar");
        let options = ["--variant=essential", "--include=adduser,init-system-helpers", "--quiet", name];
        status(Command::new("mmdebstrap").args(options).arg(&part).current_dir(root()))?;
        fs::rename(&part, &archive).map_err(|e| format!("{}: {e}", archive.display()))?;
    }
    Ok(archive)
}
