//! The users that programs run as: not the user who started `up`, if the machine has other user ids available.
//!
//! Programs of the same identity (namespace and service account) share a user and a directory for their files, so the
//! machine separates them exactly as the mesh does. Each proxy has a user of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, User};

use crate::confine::{Account, Privileges};
use crate::container::ContainerSpec;
use crate::mounts;
use crate::pods::Pod;
use crate::preflight::is_root;
use crate::temporary;
use crate::user_names;
use crate::view::View;
use crate::view_error::ViewError;
use crate::workloads::ENVOY_VARIABLE;

/// The first user and group ids to assign, in order of preference: systemd leaves ids from 1879048192 up unused, and a
/// container may have only few ids.
const FIRST_IDS: [u32; 2] = [1_900_000_000, 50_000];
/// Maximum number of ids that are assigned: half to identities, half to proxies. The next one is the user of process 1 in
/// every application's process namespace.
const MAX_IDS: u32 = 10_000;

/// How programs get their users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    /// There is only the user who started `up`.
    Same,
    /// Each proxy has its own user, from this id up; all applications run as the user who called `sudo`.
    Invoking(Account, u32),
    /// Each proxy and each identity has its own user, from this id up.
    Own(u32),
}

/// The users that have been assigned.
#[derive(Debug)]
pub struct Accounts {
    users: Users,
    state: PathBuf,
    data: PathBuf,
    directory: PathBuf,
    identities: BTreeMap<(String, String), u32>,
    proxies: u32,
}

/// User, container and environment of an application.
#[derive(Debug, Clone)]
pub struct ApplicationSetup {
    /// Its container.
    pub container: ContainerSpec,
    /// The directory that it shares with programs of the same identity.
    pub data: PathBuf,
    /// Variables that name its user.
    pub environment: Vec<(String, String)>,
}

impl Accounts {
    /// Tries what this machine allows: first users of their own, then the user behind `sudo`. The returned note tells
    /// the user why less is possible.
    pub fn settle(state: &Path, data: &Path, directory: &Path) -> (Self, Option<String>) {
        let accounts = |users| Self {
            users,
            state: state.to_path_buf(),
            data: data.to_path_buf(),
            directory: directory.to_path_buf(),
            identities: BTreeMap::new(),
            proxies: 0,
        };
        let Some(first) = first_id().filter(|_| is_root()) else { return (accounts(Users::Same), None) };
        let mut reason = None;
        for users in invoking_user().map(|user| Users::Invoking(user, first)).into_iter().chain([Users::Own(first)]) {
            match accounts(users).trial() {
                Ok(()) => return (accounts(users), None),
                Err(error) => reason = Some(error),
            }
        }
        let note = reason.map(|error| {
            format!(
                "programs run as root, though without root's capabilities: {error}; to avoid that, run `sudo evenkeel up` as the user who owns {}",
                directory.display()
            )
        });
        (accounts(Users::Same), note)
    }

    /// Makes the view of a first application as a trial and drops it.
    fn trial(mut self) -> Result<(), ViewError> {
        let ApplicationSetup { container, .. } = self.of_identity("istio-system", "default", None)?;
        let failed = ViewError::at(&self.state);
        let trial = std::thread::Builder::new().name("view".to_owned()).spawn(move || {
            let own_mounts = unshare(CloneFlags::CLONE_NEWNS);
            own_mounts.map_err(|error| ViewError::at(Path::new("/"))(error.into()))?;
            container.view.mount()
        });
        let tried = trial.map_err(&failed)?.join();
        tried.unwrap_or_else(|_| Err(failed(io::Error::other("the thread that tries a view panicked"))))
    }

    /// The setup of a replica's application, which runs in `directory`; `None`: in the default directory.
    pub fn of_application(&mut self, pod: &Pod, directory: Option<&Path>) -> Result<ApplicationSetup, ViewError> {
        self.of_identity(&pod.namespace, &pod.service_account, directory)
    }

    fn of_identity(
        &mut self,
        namespace: &str,
        service_account: &str,
        directory: Option<&Path>,
    ) -> Result<ApplicationSetup, ViewError> {
        let next = u32::try_from(self.identities.len()).unwrap_or(MAX_IDS);
        let identity = (namespace.to_owned(), service_account.to_owned());
        let index = *self.identities.entry(identity).or_insert(next);
        let account = match self.users {
            Users::Same => None,
            Users::Invoking(account, _) => Some(account),
            Users::Own(first) => Some(nth(first, index % (MAX_IDS / 2))),
        };
        let data = self.data.join(format!("{namespace}.{service_account}"));
        own_folder(&data, account).map_err(|source| ViewError::at(&data)(source))?;
        let readable = if let Users::Own(_) = self.users { temporary::named_by_environment() } else { Vec::new() };
        // Whoever may write to the directory names another one in a manifest, so that gives no right to it.
        let entered = directory.filter(|directory| !directory.starts_with(&self.directory)).map(Path::to_path_buf);
        let own = vec![self.directory.clone(), data.clone()];
        let names = account.map(|account| {
            let folder = self.state.join("etc").join(account.uid.to_string());
            let home = if let Users::Own(_) = self.users { data.as_path() } else { Path::new("/") };
            user_names::write(&folder, account, service_account, home)
        });
        let over = names.transpose().map_err(ViewError::at(&self.state))?.unwrap_or_default();
        let shown = Some(temporary::of_environment());
        let view = View { own, readable, entered, over, shown, ..self.view(account) };
        let container =
            ContainerSpec { view, privileges: Privileges::of_application(account), init: Some(self.of_init()) };
        let environment = match self.users {
            Users::Same => Vec::new(),
            Users::Invoking(account, _) => variables(account),
            // Root's home directory must be read-only.
            Users::Own(_) => vec![
                ("HOME".to_owned(), data.display().to_string()),
                ("XDG_CACHE_HOME".to_owned(), data.join(".cache").display().to_string()),
            ],
        };
        Ok(ApplicationSetup { container, data, environment })
    }

    /// The container of a replica's proxy, which has `folder` for its files. `executable`: a program other than this
    /// one.
    pub fn of_proxy(&mut self, folder: &Path, executable: Option<&Path>) -> Result<ContainerSpec, ViewError> {
        let account = self.next_own();
        own_folder(folder, account).map_err(|source| ViewError::at(folder)(source))?;
        let readable = executable.and_then(|path| self.folder_of(path)).into_iter().collect();
        // Files that objects name, such as certificates, are in the mesh's directory.
        let mut shown = temporary::of_environment();
        shown.extend(std::iter::once(self.directory.clone()).chain(executable.map(Path::to_path_buf)));
        let view = View { own: vec![folder.to_path_buf()], readable, shown: Some(shown), ..self.view(account) };
        Ok(ContainerSpec { view, privileges: Privileges::of_proxy(account), init: None })
    }

    /// The folder of a proxy's executable, if that may be opened to the proxy although it is closed to others. A manifest
    /// may name any file, so this is only done where programs may read anyway, and for the operator's own choice.
    fn folder_of(&self, executable: &Path) -> Option<PathBuf> {
        let folder = executable.canonicalize().ok()?.parent()?.to_path_buf();
        let chosen = std::env::var_os(ENVOY_VARIABLE).is_some_and(|path| Path::new(&path) == executable);
        let mut open = temporary::named_by_environment().into_iter().chain([self.directory.clone()]);
        (chosen || open.any(|place| folder.starts_with(place))).then_some(folder)
    }

    /// The privileges of process 1 in a process namespace: none. Its executable is loaded where the program has mounted
    /// its volumes, so it may be the program's code that runs.
    fn of_init(&self) -> Privileges {
        Privileges::of_application(match self.users {
            Users::Invoking(_, first) | Users::Own(first) if may_be_run_by_others() => Some(nth(first, MAX_IDS)),
            _ => None,
        })
    }

    /// The next user for a component that is not an application; `None` if there is only the user who started `up`.
    fn next_own(&mut self) -> Option<Account> {
        match self.users {
            Users::Invoking(_, first) | Users::Own(first) if may_be_run_by_others() => {
                self.proxies += 1;
                Some(nth(first, MAX_IDS / 2 + self.proxies % (MAX_IDS / 2)))
            }
            _ => None,
        }
    }

    /// A view with nothing of the state directory.
    fn view(&self, account: Option<Account>) -> View {
        View {
            account,
            hidden: self.state.clone(),
            own: Vec::new(),
            own_read_only: Vec::new(),
            entered: None,
            mounts: None,
            readable: Vec::new(),
            over: Vec::new(),
            shown: None,
        }
    }

    /// Returns the container of the name server and egress, in which the state directory is not visible.
    pub fn of_egress(&mut self) -> ContainerSpec {
        let account = self.next_own();
        let view = self.view(account);
        ContainerSpec { view, privileges: Privileges::of_egress(account), init: Some(self.of_init()) }
    }

    /// The container of the control plane, which runs as the user who started `up` and sees only these paths of the
    /// state directory. `over`: its files of name resolution, each with the machine's.
    pub fn of_control_plane(&self, own: Vec<PathBuf>, over: Vec<(PathBuf, PathBuf)>) -> ContainerSpec {
        let view = View { own, over, ..self.view(None) };
        ContainerSpec { view, privileges: Privileges::of_control_plane(), init: Some(self.of_init()) }
    }
}

fn nth(first: u32, index: u32) -> Account {
    Account { uid: first + index, gid: first + index }
}

/// The first user id to assign, if there are any; a user namespace may have only one.
fn first_id() -> Option<u32> {
    let has = |map: &str, first: u32| {
        let text = fs::read_to_string(Path::new("/proc/self").join(map)).unwrap_or_default();
        text.lines().any(|line| holds(line, first))
    };
    FIRST_IDS.into_iter().find(|first| has("uid_map", *first) && has("gid_map", *first))
}

/// Whether a line of a map (user_namespaces(7)) has all the users from `first` up.
fn holds(line: &str, first: u32) -> bool {
    let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    let (Some(start), Some(_), Some(length)) = (numbers.next(), numbers.next(), numbers.next()) else { return false };
    start <= u64::from(first) && u64::from(first + MAX_IDS) < start + length
}

/// The user who had `sudo` start this process.
pub(crate) fn invoking_user() -> Option<Account> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok().filter(|number| *number != 0);
    Some(Account { uid: number("SUDO_UID")?, gid: number("SUDO_GID")? })
}

/// Variables for a user; `sudo` may have left root's.
pub(crate) fn variables(account: Account) -> Vec<(String, String)> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(account.uid)) else { return Vec::new() };
    let home = user.dir.display().to_string();
    [("HOME", home), ("USER", user.name.clone()), ("LOGNAME", user.name)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// Whether other users than the owner may execute this program's file.
fn may_be_run_by_others() -> bool {
    fs::metadata("/proc/self/exe").is_ok_and(|file| file.mode() & 0o005 == 0o005)
}

/// Makes a folder that belongs to this account only.
fn own_folder(folder: &Path, account: Option<Account>) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let (Some(account), now) = (account, mounts::owner(folder)?) else { return Ok(()) };
    if now == account { Ok(()) } else { chown(folder, Some(account.uid), Some(account.gid)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_map_that_has_all_of_them_gives_users() {
        let check = |line: &str, expected: [bool; 2]| {
            assert_eq!(FIRST_IDS.map(|first| holds(line, first)), expected, "{line}");
        };
        check("         0          0 4294967295", [true, true]);
        check("         0     100000      65536", [false, true]);
        check("         0       1000          1", [false, false]);
        check("", [false, false]);
        check("0 0 many", [false, false]);
    }
}
