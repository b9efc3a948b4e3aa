package cli

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
)

// TestMountNamed wants the volume that somebody means to be found, and none where several may be meant.
func TestMountNamed(t *testing.T) {
	s := &api.VolumeState{Mounts: []api.VolumeMount{
		{Driver: "d", Name: "data", Handle: "1"}, {Driver: "d", Name: "own", Handle: "2"}, {Driver: "e", Name: "own", Handle: "3"},
	}}
	for name, want := range map[string]string{"data": "1", "1": "1", "3": "3", "own": "", "other": ""} {
		one, err := mountNamed(s, name)
		if (err == nil) != (want != "") || err == nil && one.Handle != want {
			t.Errorf("%s: %+v, %v", name, one, err)
		}
	}
}

// TestTableVolumes wants what drivers do not say not to be shown as nothing, and what they say on one line.
func TestTableVolumes(t *testing.T) {
	used, most, well, ill := int64(512<<20), int64(3), true, false
	state := &api.VolumeState{
		Drivers: []api.VolumeDriver{
			{Name: "d", Version: "1", Connected: true, Endpoint: "/d", NodeID: "n", Volumes: 2, MaxVolumes: &most, Topology: map[string]string{"z": "a", "r": "b"}},
			{Name: "e", Endpoint: "/e"},
			{Name: "f", Endpoint: "/f", Refused: "it is\nno driver"},
		},
		Claims: []api.VolumeClaim{
			{Kind: "volume", Namespace: "default", Claim: "a", Class: "fast", Attributes: "gold", Bytes: 1 << 30, Status: "Ready", Driver: "d"},
			{Kind: "volume", Namespace: "default", Claim: "b", Class: "fast", Status: "Missing", Left: "5m0s", Driver: "d", Error: "in use"},
			{
				Kind: "groupsnapshot", Namespace: "default", Claim: "g", Class: "all", Bytes: 3 << 20, Status: "Ready", Driver: "d",
				Members: []api.VolumeMember{{Claim: "a", Snapshot: "g-a", Bytes: 1 << 20}, {Claim: "b", Snapshot: "g-b", Bytes: 2 << 20}},
			},
		},
		Mounts: []api.VolumeMount{
			{Driver: "d", Name: "pv-a", Stage: "/s", Staged: true, Capacity: 1 << 30, Used: &used, Healthy: &well, Pods: []api.VolumeUse{{Pod: "default/p", Published: true}, {Pod: "default/q", Published: true}}},
			{Driver: "d", Name: "pv-b", Stage: "/s", Pods: []api.VolumeUse{{Pod: "default/p"}}, Healthy: &ill, Health: "DEGRADED: a disk is gone", Error: "no"},
			{Driver: "e", Name: "pv-c"},
		},
	}
	var text strings.Builder
	tableVolumes(&text, state)
	tableDrivers(&text, state.Drivers)
	tableFindings(&text, []api.VolumeFinding{{What: "orphan", Path: "/x", Text: "no record"}, {What: "orphan", Driver: "d", Path: "/y", Text: "gone", Undone: true}})
	want := []string{
		"DRIVER|VERSION|STATUS|ENDPOINT", "d|1|Connected|/d", "e|<none>|NotAnswering|/e", "f|<none>|Refused: it is^Jno driver|/f", "",
		"KIND|CLAIM|CLASS|ATTRIBUTES|SIZE|STATUS|DRIVER", "volume|default/a|fast|gold|1GiB|Ready|d",
		"volume|default/b|fast|<none>|0B|Missing (deleted in 5m0s): in use|d", "groupsnapshot|default/g|all|<none>|3MiB|Ready|d",
		"snapshot|default/g-a|all|<none>|1MiB|of default/g, of volume a|d", "snapshot|default/g-b|all|<none>|2MiB|of default/g, of volume b|d", "",
		"VOLUME|PODS|STATUS|USED|CAPACITY|HEALTH|DRIVER",
		"pv-a|default/p,default/q|Published|512MiB|1GiB|Normal|d",
		"pv-b|default/p|HalfDone: no|<unknown>|<unknown>|Abnormal: DEGRADED: a disk is gone|d",
		"pv-c|<none>|Published|<unknown>|<unknown>|<unknown>|e",
		"DRIVER|VERSION|STATUS|NODE-ID|VOLUMES|TOPOLOGY|ENDPOINT", "d|1|Connected|n|2 of 3|r=b,z=a|/d", "e|<none>|NotAnswering|<none>|0|<none>|/e",
		"f|<none>|Refused: it is^Jno driver|<none>|0|<none>|/f",
		"orphan|<none>|/x|no record", "undone|d|/y|gone", "",
	}
	if got := strings.Split(strings.ReplaceAll(text.String(), "\t", "|"), "\n"); !slices.Equal(got, want) {
		t.Errorf("got %s", strings.Join(got, "\n"))
	}
}

// TestConcerning wants a pod's events to have those of its claims, and of no others.
func TestConcerning(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}
	of := func(kind, namespace, name, uid string) corev1.Event {
		return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name, UID: types.UID(uid)}, Message: "m"}
	}
	var got []string
	for _, e := range concerning(pod, claimsOf(pod), []corev1.Event{
		of("Pod", "default", "p", "u"), of("PersistentVolumeClaim", "default", "data", "c"), of("PersistentVolumeClaim", "other", "data", "d"),
		of("PersistentVolumeClaim", "default", "p-own", "e"), of("Pod", "default", "q", "w"), of("VolumeSnapshot", "default", "data", "s"),
	}) {
		got = append(got, e.Message)
	}
	if want := []string{"m", "claim data: m", "claim p-own: m"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
