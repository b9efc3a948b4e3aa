package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/control/rotation"
	"github.com/berth-node/berth/control/scheduler"
	"github.com/berth-node/berth/internal/commandline"
)

// printed is what a command writes.
func printed(t *testing.T, form string, v any, table func(io.Writer) error) string {
	t.Helper()
	var out strings.Builder
	o := &commandline.Output{}
	c := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return o.Print(&out, v, table) }}
	o.AddFlag(c)
	c.SetArgs(nil)
	if form != "" {
		c.SetArgs([]string{"-o", form})
	}
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestShown has each table of the commands be written for people, for whom what others have written steers no terminal,
// and for programs.
func TestShown(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	certs, errs := certsShown([]pki.Entry{
		{Name: "ca", File: "/pki/ca", Subject: "CN=ca", NotAfter: now.Add(49 * time.Hour)},
		{Name: "old", File: "/pki/old", Authority: "ca", Subject: "CN=x\x1b[2J", NotAfter: now.Add(-25 * time.Hour)},
		{Name: "gone", File: "/pki/gone", Err: errors.New("torn")},
	}, now)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "/pki/gone: torn") {
		t.Errorf("not read: %v", errs)
	}
	store := storeShown((*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{
		Header: &etcdserverpb.ResponseHeader{Revision: 7}, Version: "3", DbSize: 10, DbSizeInUse: 5, Leader: 0xab, RaftTerm: 2,
		Errors: []string{"alarm:NOSPACE "},
	}))
	members := membersShown((*clientv3.MemberListResponse)(&etcdserverpb.MemberListResponse{Members: []*etcdserverpb.Member{
		{ID: 0xab, Name: "one", PeerURLs: []string{"https://a:1", "https://b:1"}}, {ID: 1, PeerURLs: []string{"https://c:1"}, IsLearner: true},
	}}))
	rotations := rotationsShown([]rotation.Progress{
		{Name: "ca", Phase: rotation.Sign, Next: "0123456789abcdef", Before: "fedcba9876543210", Behind: []string{"b"}, Seen: map[string]time.Time{"node": now}},
		{Name: "sa", Phase: rotation.Done, Next: "0123456789abcdef"},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/2"}}
	not := whyShown(pod, &scheduler.Explanation{
		Whole: []scheduler.Reason{{Plugin: "P", Message: "no claim"}},
		Nodes: []scheduler.NodeReasons{{Node: "a", Reasons: []scheduler.Reason{{Plugin: "Q", Message: "full\tof it"}}}, {Node: "b"}},
	})
	nowhere := whyShown(pod, &scheduler.Explanation{})
	on := pod.DeepCopy()
	on.Spec.NodeName = "a"
	there := whyShown(on, nil)
	tokens := tokensShown([]corev1.Secret{
		{Data: map[string][]byte{"token-id": []byte("zzz"), "token-secret": []byte("hush"), "usage-bootstrap-authentication": []byte("true"), "description": []byte("a\x1b[2J\tb")}},
		{Data: map[string][]byte{
			"token-id": []byte("aaa"), "token-secret": []byte("hush"), "usage-bootstrap-authentication": []byte("true"),
			"expiration": []byte(now.Format(time.RFC3339)), "auth-extra-groups": []byte(memberGroup + "aaa"),
		}},
		{Data: map[string][]byte{"token-id": []byte("bbb"), "expiration": []byte("soon")}},
	}, now)
	for name, c := range map[string]struct {
		v     any
		table func(io.Writer) error
		want  string   // of the table
		json  []string // parts
	}{
		"certs": {
			certs, certs.table, "NAME  ENDS                  LEFT     AUTHORITY  SUBJECT\n" +
				"ca    2030-01-04T04:04:05Z  2 days   -          CN=ca\nold   2030-01-01T02:04:05Z  -1 days  ca         CN=x^[[2J\n",
			[]string{`"leftDays": -1`, `"notAfter": "2030-01-04T04:04:05Z"`},
		},
		"no certs": {shownCerts{}, shownCerts{}.table, "", []string{`"certificates": []`}},
		"status": {
			store, store.table, "version    3\nsize       10 bytes\nin use     5 bytes\nrevision   7\nleader     ab\nraft term  2\nalarm      alarm:NOSPACE \n",
			[]string{`"sizeBytes": 10`, `"leader": "ab"`, `"alarms": [`},
		},
		"members": {
			members, members.table, "ID  NAME  ADDRESS                  LEARNER\nab  one   https://a:1,https://b:1  false\n1   -     https://c:1              true\n",
			[]string{`"id": "ab"`, `"learner": true`, `"name": ""`},
		},
		"rotations": {
			rotations, rotations.table, "AUTHORITY  PHASE  NEW           BEFORE        MEMBERS BEHIND  STILL NEED THE ONE BEFORE\n" +
				"ca         sign   0123456789ab  fedcba987654  b               node (2030-01-02T03:04:05Z)\n" +
				"sa         done   0123456789ab  -             none            nobody\n",
			[]string{`"new": "0123456789abcdef"`, `"membersBehind": []`, `"seenAt": {}`, `"node": "2030-01-02T03:04:05Z"`},
		},
		"why": {
			not, not.table, "Unschedulable: 0/2\nwhatever the node: no claim (P)\nNODE  PLUGIN  REASON\na     Q       full^Iof it\nb     -       suits the pod\n",
			[]string{`"nodeName": null`, `"suits": true`, `"message": "full\tof it"`, `"againstPod": [`},
		},
		"why nowhere": {nowhere, nowhere.table, "Unschedulable: 0/2\nthere are no nodes\n", []string{`"nodes": []`}},
		"why there":   {there, there.table, "pod n/p is on node a\n", []string{`"nodeName": "a"`, `"scheduler": null`}},
		"tokens": {
			tokens, tokens.table, "ID   FOR     ENDS                  USABLE  DESCRIPTION\naaa  member  2030-01-02T03:04:05Z  false   -\n" +
				"bbb  node    unknown               false   -\nzzz  node    never                 true    a^[[2J^Ib\n",
			[]string{`"expiresAt": null`, `"usable": true`, `"for": "member"`},
		},
		"no tokens": {shownTokens{}, shownTokens{}.table, "No tokens.\n", []string{`"tokens": []`}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := printed(t, "", c.v, c.table); got != c.want {
				t.Errorf("the table is\n%s\nwant\n%s", got, c.want)
			}
			text := printed(t, "json", c.v, c.table)
			for _, want := range append(c.json, `"schemaVersion": 1`) {
				if !strings.Contains(text, want) {
					t.Errorf("%s has no %s", text, want)
				}
			}
			if strings.ContainsAny(text, "\x1b") || strings.Contains(text, "hush") {
				t.Errorf("it has what nobody is to see: %s", text)
			}
		})
	}
}
