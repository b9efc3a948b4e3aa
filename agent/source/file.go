package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/object"
)

// file is what is known of one entry of the directory.
type file struct {
	id       identity
	sum      [sha256.Size]byte
	read     bool // sum holds
	claims   []claim
	problems []Problem // but for conflicts with other files
}

func (f *file) claim(key object.Ref) *claim {
	for i := range f.claims {
		if f.claims[i].key == key {
			return &f.claims[i]
		}
	}
	return nil
}

// errBusy says that a file is open for writing: its writer's close will be told.
var errBusy = errors.New("open for writing")

// check reads one entry and makes what it says the desired state.
func (s *Source) check(name string) {
	if s.dir == "" {
		return
	}
	path := filepath.Join(s.dir, name)
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		delete(s.busy, name)
		s.vanish(name, s.quietAfter(unix.IN_MOVED_FROM))
		s.refresh(name)
		return
	}
	delete(s.gone, name)
	if s.watch != nil {
		s.watchLink(name, path, err == nil && info.Mode()&os.ModeSymlink != 0)
	}
	data, id, err := readManifest(path)
	if errors.Is(err, errBusy) {
		s.waitForWriter(name)
		return
	}
	delete(s.busy, name)
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	}
	exposed := fmt.Sprint(f.id.exposed()) != fmt.Sprint(id.exposed())
	f.id = id
	sum := sha256.Sum256(data)
	switch {
	case err != nil:
		s.fail(name, f, err)
		return
	case f.read && f.sum == sum && !exposed:
		return
	case len(data) == 0 && len(f.claims) == 0:
		// Somebody is about to fill it.
		f.problems = nil
		s.refresh(name)
		return
	case len(data) == 0:
		s.fail(name, f, errors.New("file is empty (remove it to remove its pods)"))
		return
	}
	f.sum, f.read = sum, true
	s.apply(name, f, decode(data))
}

// watchLink watches where a symlinked manifest leads, so that a change of the target or of a link on the way is told.
func (s *Source) watchLink(name, path string, link bool) {
	if !link {
		if s.files[name] != nil {
			_, _ = s.watch.set(name, nil)
		}
		return
	}
	steps, _, ok := trail(path, maskContent)
	for range 10 {
		if _, err := s.watch.set(name, steps); err != nil {
			s.log.Warn("changes of a symlinked manifest are noticed only by the rescan", "file", path, "error", err)
			return
		}
		again, _, ok2 := trail(path, maskContent)
		if ok == ok2 && slices.Equal(steps, again) {
			return
		}
		steps, ok = again, ok2
	}
}

// busy is a file that is open for writing.
type busy struct {
	since time.Time
	wait  time.Duration
}

// waitForWriter looks at a file again later, and names the writer who never ends.
func (s *Source) waitForWriter(name string) {
	now := time.Now()
	b, ok := s.busy[name]
	if !ok {
		b = busy{since: now, wait: busyFirst}
	}
	s.later[name] = now.Add(b.wait)
	b.wait = min(2*b.wait, busyMost)
	s.busy[name] = b
	if now.Sub(b.since) < busyTold {
		return
	}
	err := errors.New("not read: another process has it open for writing")
	if f := s.files[name]; f != nil {
		s.fail(name, f, err)
		return
	}
	s.setProblems(name, []Problem{{File: s.path(name), Errors: []string{err.Error()}}})
}

// fail notes that a file cannot be read; its pods stay.
func (s *Source) fail(name string, f *file, err error) {
	f.read = false
	f.problems = []Problem{{File: s.path(name), Errors: []string{clip(err.Error())}, Kept: podsOf(f.claims)}}
	s.refresh(name)
}

// readManifest reads a regular file that nobody writes to. Anything else is refused unopened or unread: a FIFO would block,
// and a device may act.
func readManifest(path string) ([]byte, identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if os.IsNotExist(err) {
			return nil, identity{}, errors.New("symlink leads nowhere")
		}
		return nil, identity{}, fmt.Errorf("cannot be read: %w", err)
	}
	id := statID(&st)
	if err := checkKind(&st); err != nil {
		return nil, id, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	id = statID(&st)
	if err := checkKind(&st); err != nil {
		return nil, id, err
	}
	// They call themselves regular, but reading one (/proc/kmsg) may never come to an end.
	if kernels(f) {
		return nil, id, errors.New("is a file of the kernel's own, such as those in /proc")
	}
	if beingWritten(f) {
		return nil, id, errBusy
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, id, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > MaxFile {
		return nil, id, fmt.Errorf("file has more than %d bytes", MaxFile)
	}
	// It may have been opened since.
	if beingWritten(f) {
		return nil, id, errBusy
	}
	return data, id, nil
}

func checkKind(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Size > MaxFile {
			return fmt.Errorf("file has %d bytes, and at most %d are allowed", st.Size, MaxFile)
		}
		return nil
	case unix.S_IFDIR:
		return errors.New("is a directory: manifests in it are not read")
	}
	return errors.New("is no regular file")
}

// kernels says whether a file is in a file system that shows what the kernel knows, and not what is on a disk.
func kernels(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil &&
		slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.TRACEFS_MAGIC, unix.DEBUGFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC}, st.Type)
}

// beingWritten asks for a read lease, which the kernel refuses while any process has the file open for writing. Where
// leases do not exist, the answer is no, and half a file may be read until its writer closes it.
func beingWritten(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}

// apply makes the pods of a file desired. While any of its documents is wrong, none of its pods goes.
func (s *Source) apply(name string, f *file, docs []decoded) {
	f.problems = nil
	before := f.claims
	var now []claim
	wrong := false
	for i := range docs {
		d := &docs[i]
		c, ok := claim{}, false
		if len(d.errors) == 0 && (d.pod != nil || d.object != nil) {
			c, ok = s.claimOf(d, time.Now(), s.exposed(name, f))
		}
		s.mark(name, &c)
		if ok && slices.ContainsFunc(now, func(o claim) bool { return o.key == c.key }) {
			d.errors = append(d.errors, d.at.say("metadata.name", fmt.Sprintf("metadata.name: Duplicate value: %q: an earlier document of this file has it", c.key.NamespacedName)))
			ok = false
		}
		wrong = wrong || !ok && len(d.errors) > 0
		if ok {
			if old := f.claim(c.key); old != nil && old.hash == c.hash {
				c = *old
			} else {
				s.succeed(f, &c)
			}
			now = append(now, c)
		}
		if len(d.errors)+len(d.warnings) > 0 {
			f.problems = append(f.problems, Problem{File: s.path(name), Pod: d.key(s.cfg.NodeName), Errors: d.errors, Warnings: d.warnings})
		}
	}
	if wrong {
		var kept []claim
		for _, old := range before {
			if !slices.ContainsFunc(now, func(c claim) bool { return c.key == old.key }) {
				kept = append(kept, old)
			}
		}
		now = append(now, kept...)
		tellKept(f.problems, podsOf(kept))
	}
	f.claims = now
	s.reclaim(name, before, now)
}

// podsOf names the pods among claims.
func podsOf(claims []claim) []string {
	var out []string
	for _, c := range claims {
		if c.pod != nil {
			out = append(out, c.key.NamespacedName.String())
		}
	}
	return out
}

// tellKept says of each error of a file which pods run on because of it: the one that it names, or any where it names none.
func tellKept(problems []Problem, kept []string) {
	for i := range problems {
		switch p := &problems[i]; {
		case len(p.Errors) == 0:
		case p.Pod == "":
			p.Kept = kept
		case slices.Contains(kept, p.Pod):
			p.Kept = []string{p.Pod}
		}
	}
}

// drop forgets a file and its pods.
func (s *Source) drop(name string) {
	f := s.files[name]
	if f == nil {
		return
	}
	delete(s.files, name)
	delete(s.busy, name)
	if s.watch != nil {
		_, _ = s.watch.set(name, nil)
	}
	s.reclaim(name, f.claims, nil)
	s.setProblems(name, nil)
}

// reclaim changes which keys a file claims, from before to now.
func (s *Source) reclaim(name string, before, now []claim) {
	s.unsaved[name] = true
	others := map[string]bool{name: true}
	for _, c := range before {
		for _, o := range s.claims[c.key] {
			others[o] = true
		}
		if !slices.ContainsFunc(now, func(n claim) bool { return n.key == c.key }) {
			s.unclaim(name, c.key)
		}
	}
	for _, c := range now {
		if !slices.Contains(s.claims[c.key], name) {
			s.claims[c.key] = append(s.claims[c.key], name)
		}
		s.handOver(c.key)
		for _, o := range s.claims[c.key] {
			others[o] = true
		}
		s.settle(c.key)
	}
	for _, c := range before {
		s.settle(c.key)
	}
	for o := range others {
		s.refresh(o)
	}
}

func (s *Source) unclaim(name string, key object.Ref) {
	left := slices.DeleteFunc(s.claims[key], func(n string) bool { return n == name })
	if len(left) == 0 {
		delete(s.claims, key)
		return
	}
	s.claims[key] = left
}

// handOver lets a file that is going lose a key at once to one that is there: the manifest was renamed.
func (s *Source) handOver(key object.Ref) {
	slices.SortStableFunc(s.claims[key], func(a, b string) int {
		switch {
		case s.gone[a] == s.gone[b]:
			return 0
		case s.gone[a]:
			return 1
		}
		return -1
	})
}

// settle queues what the desired state of a key is now.
func (s *Source) settle(key object.Ref) {
	holders := s.claims[key]
	if len(holders) == 0 {
		s.queue.put(Update{Kind: key.Kind, Key: key.NamespacedName}, "")
		return
	}
	name := holders[0]
	c := s.files[name].claim(key)
	if c == nil {
		return
	}
	// What a pod refers to may be in a file that is read after its own.
	if c.pod != nil && !s.queue.scanned && len(object.Refs(c.pod)) > 0 {
		return
	}
	s.queue.put(Update{Kind: key.Kind, Key: key.NamespacedName, Pod: c.pod, Object: c.object, File: s.path(name)}, c.version())
}

// mark tells where a pod comes from.
func (s *Source) mark(name string, c *claim) {
	if name == s.cfg.URL && c.pod != nil {
		c.pod.Annotations[AnnotationSource] = "http"
	}
}

func (s *Source) path(name string) string {
	if name == s.cfg.URL {
		if u, err := url.Parse(name); err == nil {
			return u.Redacted()
		}
	}
	return filepath.Join(s.cfg.Dir, name)
}

// conflicts names the files that have what this one claims too.
func (s *Source) conflicts(name string, f *file) []Problem {
	var out []Problem
	for _, c := range f.claims {
		holder := s.claims[c.key][0]
		if holder == name || s.gone[name] {
			continue
		}
		what, named := "pod", c.key.NamespacedName.String()
		if c.pod == nil {
			what, named = strings.ToLower(string(c.key.Kind)), c.key.String()
		}
		out = append(out, Problem{File: s.path(name), Pod: named, Errors: []string{fmt.Sprintf(
			"metadata.name: Duplicate value: %q: %s of %s already, so that of %s waits until the other one goes",
			strings.TrimSuffix(c.key.Name, "-"+s.cfg.NodeName), what, s.path(holder), s.path(name))}})
	}
	return out
}
