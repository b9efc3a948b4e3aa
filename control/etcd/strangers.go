package etcd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	// strangeFor is how long after a member of another cluster was heard of it is told of. It is heard of each second.
	strangeFor = time.Minute
	// maxStrangers bounds how many of them are known.
	maxStrangers = 16
	// mismatch is what etcd says of one that has another cluster's ID, many times a second, and never why.
	mismatch = "cluster ID mismatch"
	// strangeMark begins what is to be done about one.
	strangeMark = "another cluster: "
)

// strangers are members of other clusters who want something of this one, or are where one of this cluster was. So it
// is where a member goes on with what a restore has replaced elsewhere.
type strangers struct {
	mu   sync.Mutex
	seen map[string]time.Time // what is to be done about each, and when it was last heard of
}

// hear says what is to be done about a member that etcd tells of, and whether nobody was told of it yet.
func (s *strangers) hear(fields map[string]any) (what string, first bool) {
	id := func(name string) string {
		text, _ := fields[name].(string)
		return cmp.Or(text, "unknown")
	}
	if who, asks := fields["remote-peer-server-name"].(string); asks {
		what = fmt.Sprintf(strangeMark+"member %s of %s asks for this one, which is of %s, as one does that was left out of a restore: "+
			"stop it, remove its data directory, and run there what berth-control token create --member prints here",
			who, id("remote-peer-cluster-id"), id("local-member-cluster-id"))
	} else {
		what = fmt.Sprintf(strangeMark+"where member %s was there is %s, and this one is of %s, as after a restore there: "+
			"where that one is to go on, stop berth-control here, remove its data directory, and run here what berth-control token create --member prints there",
			id("remote-peer-id"), id("remote-peer-cluster-id"), id("local-member-cluster-id"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]time.Time{}
	}
	_, told := s.seen[what]
	if !told && len(s.seen) == maxStrangers {
		return what, false
	}
	s.seen[what] = time.Now()
	return what, !told
}

// now is what is to be done about those that were heard of lately.
func (s *strangers) now() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for what, last := range s.seen {
		if time.Since(last) < strangeFor {
			all = append(all, what)
		}
	}
	slices.Sort(all)
	return all
}

// tell has the state of the member say what is to be done, beside its alarms.
func (s *strangers) tell(ctx context.Context, request any, _ *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (any, error) {
	a, err := answer(ctx, request)
	if state, ok := a.(*etcdserverpb.StatusResponse); ok && err == nil {
		state.Errors = append(state.Errors, s.now()...)
	}
	return a, err
}

// Strange is what is to be done about members of other clusters, of what a member says of its state.
func Strange(state *clientv3.StatusResponse) []string {
	return slices.DeleteFunc(slices.Clone(state.Errors), func(text string) bool { return !strings.HasPrefix(text, strangeMark) })
}

// strange says whether etcd tells of a member of another cluster.
func strange(message string, fields map[string]any) bool {
	text, _ := fields["error"].(string)
	return strings.Contains(message, mismatch) || strings.Contains(text, mismatch)
}
