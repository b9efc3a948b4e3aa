package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cni"
)

// unreadables are the sandboxes and containers whose records cannot be read. What they are is not known, so they are left running, with
// all they have, and nothing takes their place. A sandbox goes when its processes have ended, as they do with the pod's cgroup, or when
// it is removed by its ID; a container with its sandbox, or when it ends.
type unreadables struct {
	mu    sync.Mutex
	pods  map[string]unreadable // by ID
	ctrs  map[string]string     // the sandbox's ID by the container's; "" = not known
	cause map[string]error      // of containers

	removing oplock // one at a time: who waits for the end of a keeper removes what others are removing
}

// unreadable is one sandbox.
type unreadable struct {
	cause error
	group string // its cgroup, "" = not known
}

func (u *unreadables) sandbox(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.pods[id]
	return ok
}

func (u *unreadables) container(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.ctrs[id]
	return ok
}

func (u *unreadables) sandboxes() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.pods))
}

// containersOf are the unreadable containers, or those that only the sandbox explains.
func (u *unreadables) containersOf(sandbox string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for id, of := range u.ctrs {
		if of == sandbox {
			out = append(out, id)
		}
	}
	return out
}

// told is what clients are shown, by ID.
func (u *unreadables) told() map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[string]string{}
	for id, p := range u.pods {
		out[id] = "the record of this sandbox cannot be read: " + p.cause.Error()
	}
	for id, err := range u.cause {
		out[id] = "the record of this container cannot be read: " + err.Error()
	}
	return out
}

// check says what is wrong with a record that can be decoded.
func (r sandboxRecord) check(id string, cfg *runtimeapi.PodSandboxConfig) error {
	switch r.State {
	case sandboxCreating, sandboxReady, sandboxNotReady:
	default:
		return fmt.Errorf("state %q is not known", r.State)
	}
	if r.ID != id || r.Name != sandboxName(cfg.GetMetadata()) || path.Base(r.Cgroup) == "" {
		return errors.New("it is not that of this sandbox")
	}
	return nil
}

// check says what is wrong with a record that can be decoded.
func (r containerRecord) check(id string, cfg *runtimeapi.ContainerConfig, sb *sandbox) error {
	switch r.State {
	case containerCreating, containerCreated, containerStarting, containerRunning, containerExited:
	default:
		return fmt.Errorf("state %q is not known", r.State)
	}
	if r.ID != id || r.Name != containerName(cfg.GetMetadata(), sb.cfg.GetMetadata()) {
		return errors.New("it is not that of this container")
	}
	return nil
}

// quarantine leaves a sandbox as it is whose record cannot be read, and waits for its end.
func (p *pods) quarantine(id string, cause error) {
	u := unreadable{cause, p.orphanGroup(id)}
	p.unreadable.mu.Lock()
	if p.unreadable.pods == nil {
		p.unreadable.pods = map[string]unreadable{}
	}
	p.unreadable.pods[id] = u
	p.unreadable.mu.Unlock()
	p.log.Error("record of a sandbox cannot be read; it goes on, cannot be managed, and is not replaced until it is removed",
		"sandbox", id, "cgroup", u.group, "error", cause)
	p.life.start(func(ctx context.Context) {
		if err := p.keepers.AwaitEnd(ctx, p.paths.keeper(id)); err != nil {
			return
		}
		if err := p.removeUnreadable(ctx, id); err != nil && ctx.Err() == nil {
			p.log.Warn("sandbox without a readable record is not removed, the next start tries again", "sandbox", id, "error", err)
		}
	})
}

// obscure leaves a container as it is whose record cannot be read, or whose sandbox has none that can. One that has ended is removed.
func (s *Server) obscure(id, sandbox string, cause error) {
	sb, known := s.pods.byID.exact(sandbox)
	if !known && !s.pods.unreadable.sandbox(sandbox) || known && s.hasEnded(sb, id) {
		// Never started, or over. What it has is found by its directory, like that of anybody.
		s.log.Warn("container without a readable record is removed", "container", id, "sandbox", sandbox, "error", cause)
		if err := s.ctrs.records.drop(id, s.machine.paths.ctrRecord(sandbox, id)); err != nil {
			s.log.Warn("record of a container is not removed", "container", id, "error", err)
		}
		return
	}
	u := &s.pods.unreadable
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctrs == nil {
		u.ctrs, u.cause = map[string]string{}, map[string]error{}
	}
	u.ctrs[id] = sandbox
	if !known {
		return
	}
	u.cause[id] = cause
	sb.obscure = append(sb.obscure, id)
	s.log.Error("record of a container cannot be read; it goes on, and its pod gets no other container until it has ended",
		append(sb.logAttrs(), "container", id, "error", cause)...)
}

// hasEnded says whether the keeper has recorded the end of a container, or never began it.
func (s *Server) hasEnded(sb *sandbox, id string) bool {
	dir := s.machine.paths.keeper(sb.id)
	_, exit := os.Lstat(filepath.Join(dir, "exit", id))
	_, begun := os.Lstat(filepath.Join(dir, "c", id))
	return exit == nil || errors.Is(begun, os.ErrNotExist)
}

// sandboxRunning finds the sandbox whose keeper knows the container; "" when there is none.
func (s *Server) sandboxRunning(id string) string {
	found, err := filepath.Glob(filepath.Join(s.machine.paths.sandboxes(), "*", "keeper", "c", id))
	if err != nil || len(found) == 0 {
		return ""
	}
	return filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(found[0]))))
}

// replaces refuses a sandbox that would take the place of one whose record cannot be read: both would be the same pod.
func (p *pods) replaces(cfg *runtimeapi.PodSandboxConfig) error {
	parent := cfg.GetLinux().GetCgroupParent()
	if parent == "" {
		return nil // of many pods
	}
	parent = path.Dir(p.cgroupOf(parent, "x"))
	p.unreadable.mu.Lock()
	defer p.unreadable.mu.Unlock()
	for id, u := range p.unreadable.pods {
		if u.group != "" && path.Dir(u.group) == parent {
			return fmt.Errorf("%w: sandbox %s of this pod is there, and its record cannot be read (%w): it goes on until the pod is removed", errUnavailable, id, u.cause)
		}
	}
	return nil
}

// obscured is why a sandbox gets no further container: one of its own, that may be the same, cannot be read.
func (sb *sandbox) obscured() error {
	sb.mu.RLock()
	defer sb.mu.RUnlock()
	if len(sb.obscure) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the record of container %s of this pod cannot be read: it goes on until it ends, or the pod is removed", errUnavailable, sb.obscure[0])
}

// removeUnreadable removes a sandbox whose record cannot be read, and its containers.
func (p *pods) removeUnreadable(ctx context.Context, id string) error {
	if err := p.unreadable.removing.lock(ctx); err != nil {
		return err
	}
	defer p.unreadable.removing.unlock()
	if !p.unreadable.sandbox(id) {
		return nil
	}
	errs := []error{removeOrphanSandbox(ctx, p.machine, id)}
	for _, c := range p.unreadable.containersOf(id) {
		errs = append(errs, p.containers.removeObscure(ctx, c))
	}
	netns := filepath.Join(p.paths.netns(), id)
	if _, err := os.Lstat(netns); err == nil {
		errs = append(errs, p.net.Teardown(ctx, cni.Pod{ID: id, NetNS: netns}), p.net.RemoveNamespace(id))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	if err := p.records.drop(id, p.paths.record(id)); err != nil {
		return err
	}
	p.unreadable.mu.Lock()
	defer p.unreadable.mu.Unlock()
	delete(p.unreadable.pods, id)
	return nil
}

// removeObscure removes what a container has whose record cannot be read, and whose processes end with it.
func (cs *containers) removeObscure(ctx context.Context, id string) error {
	if err := removeOrphanContainer(ctx, cs.machine, id); err != nil {
		return err
	}
	for _, snap := range cs.snaps.List() {
		if snap.Key == id || len(snap.Key) > len(id) && snap.Key[:len(id)+1] == id+"-" {
			if err := cs.snaps.Remove(ctx, snap.Key); err != nil {
				return err
			}
		}
	}
	u := &cs.pods.unreadable
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := cs.records.drop(id, cs.paths.ctrRecord(u.ctrs[id], id)); err != nil {
		return err
	}
	delete(u.ctrs, id)
	delete(u.cause, id)
	return nil
}

// clearUp removes the containers of a sandbox whose records cannot be read: one that has ended, or all, "".
func (p *pods) clearUp(ctx context.Context, sb *sandbox, ended string) error {
	sb.mu.RLock()
	ids := slices.Clone(sb.obscure)
	sb.mu.RUnlock()
	for _, id := range ids {
		if ended != "" && id != ended {
			continue
		}
		if err := p.containers.removeObscure(ctx, id); err != nil {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
		sb.mu.Lock()
		sb.obscure = slices.DeleteFunc(sb.obscure, func(have string) bool { return have == id })
		sb.mu.Unlock()
	}
	return nil
}
