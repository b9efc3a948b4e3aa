package servicecidr

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func rangeOf(name string, deleted time.Time, cidrs ...string) *networkingv1.ServiceCIDR {
	r := &networkingv1.ServiceCIDR{ObjectMeta: named(name), Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	r.Finalizers = []string{finalizer}
	if !deleted.IsZero() {
		r.DeletionTimestamp = &metav1.Time{Time: deleted}
	}
	return r
}

// TestUsedOf has addresses in ranges that overlap with others.
func TestUsedOf(t *testing.T) {
	some := []*networkingv1.ServiceCIDR{
		rangeOf("a", time.Time{}, "10.0.0.0/24", "fd00::/64"), rangeOf("like-a", time.Time{}, "10.0.0.0/24"), rangeOf("free", time.Time{}, "10.0.1.0/24"),
		rangeOf("inner", time.Time{}, "10.0.2.0/28"), rangeOf("six", time.Time{}, "fd00:1::/112"), rangeOf("all", time.Time{}, "0.0.0.0/0"),
	}
	others := []*networkingv1.ServiceCIDR{rangeOf("outer", time.Time{}, "10.0.2.0/24")}
	for of, want := range map[string]string{
		"":             "[]",
		"10.0.0.9":     "[a all like-a]",
		"fd00::9":      "[a]",
		"fd00:1::9":    "[six]",
		"10.0.2.1":     "[]", // the other one has it, too
		"192.0.2.1":    "[all]",
		"no address":   "[]",
		"2001:db8::77": "[]",
	} {
		var got []string
		for name := range usedOf(some, others, []*networkingv1.IPAddress{{ObjectMeta: named(of)}}) {
			got = append(got, name)
		}
		slices.Sort(got)
		if fmt.Sprint(got) != want {
			t.Errorf("with %q they are %s, want %s", of, got, want)
		}
	}
}

// TestThousands has thousands of ranges be deleted, and an address of each go: that is one look, at each address once.
func TestThousands(t *testing.T) {
	const n = 5000
	now := time.Now()
	ranges, addresses := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	client := fake.NewClientset()
	for i := range n {
		r := rangeOf(fmt.Sprint("r", i), now.Add(-settle), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
		r.Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
		}}
		for _, err := range []error{ranges.Add(r), addresses.Add(&networkingv1.IPAddress{ObjectMeta: named(fmt.Sprintf("10.%d.%d.1", i/256, i%256))})} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := client.Tracker().Add(rangeOf("r0", now.Add(-settle), "10.0.0.0/24")); err != nil {
		t.Fatal(err)
	}
	k := &keeper{client, networkinglisters.NewServiceCIDRLister(ranges), networkinglisters.NewIPAddressLister(addresses), func() time.Time { return now }}
	looks := func() {
		t.Helper()
		keys := map[string]bool{}
		for range n {
			for _, key := range ofAddress(&networkingv1.IPAddress{}, nil) {
				keys[key] = true
			}
		}
		if len(keys) != 1 {
			t.Fatalf("addresses that go lead to %d looks", len(keys))
		}
		for key := range keys {
			if again, err := k.sync(context.Background(), key); err != nil || again != 0 {
				t.Fatalf("it is looked at again in %s: %v", again, err)
			}
		}
	}
	looks()
	if got := client.Actions(); len(got) > 0 {
		t.Fatalf("ranges that are used are written: %v", got[0])
	}
	if err := addresses.Delete(&networkingv1.IPAddress{ObjectMeta: named("10.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	looks()
	if got := client.Actions(); len(got) != 1 || !got[0].Matches("update", "servicecidrs") {
		t.Fatalf("of the range that is free there is %v", got)
	}
}
