/* Preloaded before libc: counts the calls that a writer makes to the system, and lets the n-th one fail.

   Only calls that concern the scenario count: files below its folder, the descriptors that came from them, and,
   in the process under test, its pipes, sockets, threads, forks and standard streams. What the interpreter does to
   import a module is left alone. The plan and the count are in a page that all processes of a scenario share. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define KINDS \
    K(open) K(read) K(write) K(sync) K(truncate) K(close) K(stat) K(lock) K(map) K(rename) K(unlink) K(rmdir) \
    K(mkdir) K(link) K(chmod) K(utime) K(list) K(socket) K(connect) K(send) K(receive) K(accept) K(resolve) \
    K(wait) K(pipe) K(dup) K(fork) K(exec) K(thread)
#define K(name) OP_##name,
enum kind { KINDS };
#undef K
#define K(name) #name " "
const char *faults_kinds = KINDS;

enum { SHORT = -1, CRASH = -2, END = -3 }; /* instead of an error number */
enum { MOST_CALLS = 1 << 16, MOST_FILES = 1 << 16, PREFIX_BYTES = 512 };

struct page {
    int armed;    /* calls count */
    int count;    /* so many have been made */
    int fired;    /* so many have failed */
    int at;       /* the first that fails; 0 for none */
    int error;    /* how: an error number, or one of the above */
    int persists; /* all later calls of that kind fail too */
    int kind;     /* of the one that fails */
    int reached;  /* it has been made */
    char prefix[PREFIX_BYTES]; /* of the files that count */
    char what[PREFIX_BYTES];   /* the path of the call that failed, where it had one */
    unsigned char kinds[MOST_CALLS];
};

static struct page *page;
static int is_main; /* forked from the process that made the plan; not one that was started by exec */
static unsigned char watched[MOST_FILES];

#define NAMES \
    X(open) X(open64) X(openat) X(openat64) X(creat) X(fopen) X(fopen64) X(read) X(pread) X(pread64) X(readv) \
    X(write) X(pwrite) X(pwrite64) X(writev) X(sendfile) X(sendfile64) X(copy_file_range) X(fsync) X(fdatasync) \
    X(sync_file_range) X(ftruncate) X(ftruncate64) X(posix_fallocate) X(posix_fallocate64) X(fallocate) \
    X(fallocate64) X(close) X(stat) X(stat64) X(lstat) X(lstat64) X(fstat) X(fstat64) X(fstatat) X(fstatat64) \
    X(access) X(fcntl) X(fcntl64) X(flock) X(mmap) X(mmap64) X(rename) X(renameat) X(unlink) X(unlinkat) X(rmdir) \
    X(mkdir) X(mkdirat) X(link) X(linkat) X(symlink) X(chmod) X(fchmod) X(fchmodat) X(utimensat) X(futimens) \
    X(opendir) X(fdopendir) X(readdir) X(readdir64) X(socket) X(socketpair) X(connect) X(send) X(sendto) X(sendmsg) \
    X(recv) X(recvfrom) X(recvmsg) X(accept) X(accept4) X(getaddrinfo) X(poll) X(pipe) X(pipe2) X(dup) X(dup2) \
    X(dup3) X(fork) X(posix_spawn) X(posix_spawnp) X(execve) X(pthread_create)
#define X(name) static typeof(&name) next_##name;
NAMES
#undef X

void faults_begin(int streams);

__attribute__((constructor)) static void prepare(void) {
    if (next_open) return;
#define X(name) next_##name = (typeof(&name))dlsym(RTLD_NEXT, #name);
    NAMES
#undef X
    const char *path = getenv("STEPGRADE_FAULTS_PAGE");
    if (!path) return;
    int fd = next_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = next_mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    next_close(fd);
    if (found == MAP_FAILED) return;
    page = found;
    const char *streams = getenv("STEPGRADE_FAULTS_PROGRAM"); /* a program that is under test as a whole */
    if (!streams) return;
    faults_begin(atoi(streams));
    unsetenv("STEPGRADE_FAULTS_PROGRAM");
}

/* From here on this process and its forks are the ones under test; its standard streams count too if asked. */
void faults_begin(int streams) {
    is_main = 1;
    for (int fd = 0; fd < 3; fd++) watched[fd] = (streams >> fd) & 1;
    page->armed = 1;
}

size_t faults_page_bytes(void) { return sizeof(struct page); }

static int watches(int fd) { return fd >= 0 && fd < MOST_FILES && watched[fd]; }
static int watch(int fd, int is_ours) {
    if (fd >= 0 && fd < MOST_FILES) watched[fd] = is_ours;
    return fd;
}

static int is_ours(int folder, const char *path) {
    if (!page || !page->armed || !path) return 0;
    if (path[0] == '/') {
        size_t size = strlen(page->prefix);
        return !strncmp(path, page->prefix, size) && (path[size] == '/' || !path[size]);
    }
    if (folder != AT_FDCWD) return watches(folder);
    char here[PATH_MAX];
    return getcwd(here, sizeof here) && is_ours(AT_FDCWD, here);
}

/* Count a call; return 0 when it is to be made, else how it fails. */
static int hit_fd(enum kind kind, int fd, const char *what) {
    if (!next_open) prepare();
    if (!page || !page->armed) return 0;
    int n = __atomic_add_fetch(&page->count, 1, __ATOMIC_SEQ_CST);
    if (n < MOST_CALLS) page->kinds[n] = kind;
    /* Threads take turns, so another call may be the n-th this time: the next one of the right kind fails then. */
    int is_wanted = page->at && n >= page->at && kind == (enum kind)page->kind;
    int is_first = is_wanted && !__atomic_exchange_n(&page->reached, 1, __ATOMIC_SEQ_CST);
    if (is_first) {
        char link[32];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (what) strncpy(page->what, what, PREFIX_BYTES - 1);
        else if (fd >= 0) readlink(link, page->what, PREFIX_BYTES - 1);
    }
    if (!is_first && !(is_wanted && page->persists)) return 0;
    __atomic_add_fetch(&page->fired, 1, __ATOMIC_SEQ_CST);
    if (page->error == CRASH) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    errno = page->error > 0 ? page->error : errno;
    return page->error;
}
static int hit(enum kind kind, const char *what) { return hit_fd(kind, -1, what); }
static int hit_main(enum kind kind) { return is_main ? hit(kind, NULL) : 0; }

#define FAIL_PATH(kind, folder, path) if (is_ours(folder, path) && hit(OP_##kind, path) > 0) return -1
#define FAIL_FD(kind, fd) if (watches(fd) && hit_fd(OP_##kind, fd, NULL) > 0) return -1

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if (!next_open) prepare(); \
        int ours = is_ours(AT_FDCWD, path); \
        if (ours && hit(OP_open, path) > 0) return -1; \
        return watch(next_##name(path, flags, mode), ours); \
    }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if (!next_open) prepare(); \
        int ours = is_ours(folder, path); \
        if (ours && hit(OP_open, path) > 0) return -1; \
        return watch(next_##name(folder, path, flags, mode), ours); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)
/* What a compiler puts in the place of open where it checks the number of arguments. */
int __open_2(const char *path, int flags) { return open(path, flags, 0); }
int __open64_2(const char *path, int flags) { return open64(path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
#define FOPENS(name) \
    FILE *name(const char *path, const char *mode) { \
        if (!next_open) prepare(); \
        int ours = is_ours(AT_FDCWD, path); \
        if (ours && hit(OP_open, path) > 0) return NULL; \
        FILE *file = next_##name(path, mode); \
        if (file) watch(fileno(file), ours); \
        return file; \
    }
FOPENS(fopen)
FOPENS(fopen64)

/* A connection that was reset is gone for both directions, and for the other side. */
static int lost(int fd, int error) {
    if (!error || error == ECONNRESET || error == EPIPE) shutdown(fd, SHUT_RDWR);
    if (error) errno = error;
    return -1;
}

/* A call that moves bytes may move only half of them, or find the other side gone. */
#define MOVES(name, kind, size_type, signature, fd, size, ...) \
    ssize_t name signature { \
        if (!next_open) prepare(); \
        int how = watches(fd) ? hit_fd(OP_##kind, fd, NULL) : 0; \
        if (how > 0) return lost(fd, how); \
        if (how == END) return lost(fd, 0), 0; \
        if (how == SHORT && size > 1) size = size / 2; \
        return next_##name(__VA_ARGS__); \
    }
MOVES(read, read, size_t, (int fd, void *to, size_t size), fd, size, fd, to, size)
MOVES(pread, read, size_t, (int fd, void *to, size_t size, off_t at), fd, size, fd, to, size, at)
MOVES(pread64, read, size_t, (int fd, void *to, size_t size, off64_t at), fd, size, fd, to, size, at)
MOVES(readv, read, int, (int fd, const struct iovec *to, int size), fd, size, fd, to, size)
MOVES(write, write, size_t, (int fd, const void *from, size_t size), fd, size, fd, from, size)
MOVES(pwrite, write, size_t, (int fd, const void *from, size_t size, off_t at), fd, size, fd, from, size, at)
MOVES(pwrite64, write, size_t, (int fd, const void *from, size_t size, off64_t at), fd, size, fd, from, size, at)
MOVES(writev, write, int, (int fd, const struct iovec *from, int size), fd, size, fd, from, size)
MOVES(sendfile, write, size_t, (int fd, int in, off_t *at, size_t size), fd, size, fd, in, at, size)
MOVES(sendfile64, write, size_t, (int fd, int in, off64_t *at, size_t size), fd, size, fd, in, at, size)
MOVES(copy_file_range, write, size_t, (int in, off64_t *from, int fd, off64_t *at, size_t size, unsigned flags), fd,
      size, in, from, fd, at, size, flags)
MOVES(send, send, size_t, (int fd, const void *from, size_t size, int flags), fd, size, fd, from, size, flags)
MOVES(sendto, send, size_t,
      (int fd, const void *from, size_t size, int flags, const struct sockaddr *to, socklen_t of), fd, size, fd, from,
      size, flags, to, of)
MOVES(recv, receive, size_t, (int fd, void *to, size_t size, int flags), fd, size, fd, to, size, flags)
MOVES(recvfrom, receive, size_t,
      (int fd, void *to, size_t size, int flags, struct sockaddr *from, socklen_t *of), fd, size, fd, to, size, flags,
      from, of)
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    FAIL_FD(send, fd);
    return next_sendmsg(fd, message, flags);
}
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    int how = watches(fd) ? hit_fd(OP_receive, fd, NULL) : 0;
    if (how > 0) return lost(fd, how);
    if (how == END) return lost(fd, 0), 0;
    return next_recvmsg(fd, message, flags);
}

int fsync(int fd) { FAIL_FD(sync, fd); return next_fsync(fd); }
int fdatasync(int fd) { FAIL_FD(sync, fd); return next_fdatasync(fd); }
int ftruncate(int fd, off_t size) { FAIL_FD(truncate, fd); return next_ftruncate(fd, size); }
int ftruncate64(int fd, off64_t size) { FAIL_FD(truncate, fd); return next_ftruncate64(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t size) { FAIL_FD(truncate, fd); return next_fallocate(fd, mode, at, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
    FAIL_FD(truncate, fd);
    return next_fallocate64(fd, mode, at, size);
}
/* These two return the error instead of setting it. */
int posix_fallocate(int fd, off_t at, off_t size) {
    int how = watches(fd) ? hit(OP_truncate, NULL) : 0;
    return how > 0 ? how : next_posix_fallocate(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    int how = watches(fd) ? hit(OP_truncate, NULL) : 0;
    return how > 0 ? how : next_posix_fallocate64(fd, at, size);
}
/* Linux closes the descriptor whatever it answers, and a socket without an error. */
static int is_socket(int fd) {
    int type;
    socklen_t size = sizeof type;
    return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
}
int close(int fd) {
    if (!next_open) prepare();
    int how = watches(fd) && !is_socket(fd) ? hit_fd(OP_close, fd, NULL) : 0;
    watch(fd, 0);
    int saved = errno, done = next_close(fd);
    if (how > 0) errno = saved;
    return how > 0 ? -1 : done;
}

int stat(const char *path, struct stat *to) { FAIL_PATH(stat, AT_FDCWD, path); return next_stat(path, to); }
int stat64(const char *path, struct stat64 *to) { FAIL_PATH(stat, AT_FDCWD, path); return next_stat64(path, to); }
int lstat(const char *path, struct stat *to) { FAIL_PATH(stat, AT_FDCWD, path); return next_lstat(path, to); }
int lstat64(const char *path, struct stat64 *to) { FAIL_PATH(stat, AT_FDCWD, path); return next_lstat64(path, to); }
int fstat(int fd, struct stat *to) { FAIL_FD(stat, fd); return next_fstat(fd, to); }
int fstat64(int fd, struct stat64 *to) { FAIL_FD(stat, fd); return next_fstat64(fd, to); }
int fstatat(int folder, const char *path, struct stat *to, int flags) {
    FAIL_PATH(stat, folder, path);
    return next_fstatat(folder, path, to, flags);
}
int fstatat64(int folder, const char *path, struct stat64 *to, int flags) {
    FAIL_PATH(stat, folder, path);
    return next_fstatat64(folder, path, to, flags);
}
int access(const char *path, int mode) { FAIL_PATH(stat, AT_FDCWD, path); return next_access(path, mode); }
int rename(const char *from, const char *to) { FAIL_PATH(rename, AT_FDCWD, to); return next_rename(from, to); }
int renameat(int from_folder, const char *from, int folder, const char *to) {
    FAIL_PATH(rename, folder, to);
    return next_renameat(from_folder, from, folder, to);
}
int unlink(const char *path) { FAIL_PATH(unlink, AT_FDCWD, path); return next_unlink(path); }
int unlinkat(int folder, const char *path, int flags) {
    FAIL_PATH(unlink, folder, path);
    return next_unlinkat(folder, path, flags);
}
int rmdir(const char *path) { FAIL_PATH(rmdir, AT_FDCWD, path); return next_rmdir(path); }
int mkdir(const char *path, mode_t mode) { FAIL_PATH(mkdir, AT_FDCWD, path); return next_mkdir(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) {
    FAIL_PATH(mkdir, folder, path);
    return next_mkdirat(folder, path, mode);
}
int link(const char *from, const char *to) { FAIL_PATH(link, AT_FDCWD, to); return next_link(from, to); }
int linkat(int from_folder, const char *from, int folder, const char *to, int flags) {
    FAIL_PATH(link, folder, to);
    return next_linkat(from_folder, from, folder, to, flags);
}
int symlink(const char *from, const char *to) { FAIL_PATH(link, AT_FDCWD, to); return next_symlink(from, to); }
int chmod(const char *path, mode_t mode) { FAIL_PATH(chmod, AT_FDCWD, path); return next_chmod(path, mode); }
int fchmod(int fd, mode_t mode) { FAIL_FD(chmod, fd); return next_fchmod(fd, mode); }
int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    FAIL_PATH(chmod, folder, path);
    return next_fchmodat(folder, path, mode, flags);
}
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    FAIL_PATH(utime, folder, path);
    return next_utimensat(folder, path, times, flags);
}
int futimens(int fd, const struct timespec times[2]) { FAIL_FD(utime, fd); return next_futimens(fd, times); }

DIR *opendir(const char *path) {
    int ours = is_ours(AT_FDCWD, path);
    if (ours && hit(OP_list, path) > 0) return NULL;
    DIR *found = next_opendir(path);
    if (found) watch(dirfd(found), ours);
    return found;
}
DIR *fdopendir(int fd) {
    if (watches(fd) && hit_fd(OP_list, fd, NULL) > 0) return NULL;
    return next_fdopendir(fd);
}
struct dirent *readdir(DIR *from) {
    if (watches(dirfd(from)) && hit_fd(OP_list, dirfd(from), NULL) > 0) return NULL;
    return next_readdir(from);
}
struct dirent64 *readdir64(DIR *from) {
    if (watches(dirfd(from)) && hit_fd(OP_list, dirfd(from), NULL) > 0) return NULL;
    return next_readdir64(from);
}

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}
static int is_dup(int command) { return command == F_DUPFD || command == F_DUPFD_CLOEXEC; }
#define CONTROLS(name) \
    int name(int fd, int command, ...) { \
        va_list more; va_start(more, command); void *value = va_arg(more, void *); va_end(more); \
        if (!next_open) prepare(); \
        if (is_lock(command)) FAIL_FD(lock, fd); \
        if (!is_dup(command)) return next_##name(fd, command, value); \
        int ours = watches(fd); \
        if (ours && hit(OP_dup, NULL) > 0) return -1; \
        return watch(next_##name(fd, command, value), ours); \
    }
CONTROLS(fcntl)
CONTROLS(fcntl64)
int flock(int fd, int command) { FAIL_FD(lock, fd); return next_flock(fd, command); }
#define MAPS(name, offset) \
    void *name(void *at, size_t size, int protection, int flags, int fd, offset from) { \
        if (!next_open) prepare(); \
        if (watches(fd) && hit(OP_map, NULL) > 0) return MAP_FAILED; \
        return next_##name(at, size, protection, flags, fd, from); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

int socket(int domain, int type, int protocol) {
    if (hit_main(OP_socket) > 0) return -1;
    return watch(next_socket(domain, type, protocol), is_main);
}
int socketpair(int domain, int type, int protocol, int pair[2]) {
    if (hit_main(OP_socket) > 0) return -1;
    return next_socketpair(domain, type, protocol, pair); /* both ends are ours: no network can lose them */
}
int connect(int fd, const struct sockaddr *to, socklen_t size) { FAIL_FD(connect, fd); return next_connect(fd, to, size); }
int accept(int fd, struct sockaddr *from, socklen_t *size) {
    FAIL_FD(accept, fd);
    return watch(next_accept(fd, from, size), watches(fd));
}
int accept4(int fd, struct sockaddr *from, socklen_t *size, int flags) {
    FAIL_FD(accept, fd);
    return watch(next_accept4(fd, from, size, flags), watches(fd));
}
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    if (hit_main(OP_resolve) > 0) return EAI_AGAIN;
    return next_getaddrinfo(host, service, hints, found);
}
int poll(struct pollfd *files, nfds_t count, int timeout) {
    if (hit_main(OP_wait) > 0) return -1;
    return next_poll(files, count, timeout);
}
int pipe2(int pair[2], int flags) {
    if (hit_main(OP_pipe) > 0) return -1;
    int done = next_pipe2(pair, flags);
    if (!done) watch(pair[0], is_main), watch(pair[1], is_main);
    return done;
}
int pipe(int pair[2]) { return pipe2(pair, 0); }
int dup(int fd) { FAIL_FD(dup, fd); return watch(next_dup(fd), watches(fd)); }
int dup2(int fd, int to) { FAIL_FD(dup, fd); return watch(next_dup2(fd, to), watches(fd)); }
int dup3(int fd, int to, int flags) { FAIL_FD(dup, fd); return watch(next_dup3(fd, to, flags), watches(fd)); }

pid_t fork(void) { return hit_main(OP_fork) > 0 ? -1 : next_fork(); }
/* A function that calls vfork must not return before the child has gone: a whole fork may. */
pid_t vfork(void) { return fork(); }
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    int how = hit_main(OP_fork);
    return how > 0 ? how : next_posix_spawn(pid, path, actions, attributes, words, environment);
}
int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    int how = hit_main(OP_fork);
    return how > 0 ? how : next_posix_spawnp(pid, file, actions, attributes, words, environment);
}
int execve(const char *path, char *const words[], char *const environment[]) {
    if (hit_main(OP_exec) > 0) return -1;
    return next_execve(path, words, environment);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *value) {
    int how = hit_main(OP_thread);
    return how > 0 ? how : next_pthread_create(thread, attributes, start, value);
}
