package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const ns = metav1.NamespaceDefault

// TestControlPlane goes through what clients do with a cluster, and through the death of the process.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	t.Run("resources", func(t *testing.T) { testResources(t, p) })
	t.Run("pages", func(t *testing.T) { testPages(t, p) })
	t.Run("watch", func(t *testing.T) { testWatch(t, p) })
	t.Run("patches", func(t *testing.T) { testPatches(t, p) })
	t.Run("service", func(t *testing.T) { testService(t, p) })
	t.Run("subresources", func(t *testing.T) { testSubresources(t, p) })
	t.Run("certificates", func(t *testing.T) { testCertificates(t, p) })
	t.Run("issuer", func(t *testing.T) { testIssuer(t, p) })
	t.Run("custom", func(t *testing.T) { testCustom(t, p) })
	t.Run("events", func(t *testing.T) { testEvents(t, p) })
	t.Run("commands", func(t *testing.T) { testCommands(t, p) })
	testKilled(t, p)
}

// testResources asks every resource that discovery tells of for its list, as a Table and as objects.
func testResources(t *testing.T, p *plane) {
	_, all, err := p.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	for _, group := range all {
		for _, r := range group.APIResources {
			if !strings.Contains(strings.Join(r.Verbs, " "), "list") {
				continue
			}
			path := "/apis/" + group.GroupVersion
			if group.GroupVersion == "v1" {
				path = "/api/v1"
			}
			for _, accept := range []string{"application/json;as=Table;g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf"} {
				_, err := p.client.CoreV1().RESTClient().Get().AbsPath(path, r.Name).SetHeader("Accept", accept).DoRaw(t.Context())
				if err != nil {
					t.Errorf("list %s of %s as %s: %v", r.Name, group.GroupVersion, accept, err)
				}
			}
			listed++
		}
	}
	if listed < 60 {
		t.Errorf("%d resources are listed", listed)
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": "flows"}}, Data: map[string]string{"a": "1"}}
}

// testPages lists in pages, and deletes what was listed.
func testPages(t *testing.T, p *plane) {
	maps := p.client.CoreV1().ConfigMaps(ns)
	for i := range 7 {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprint("page-", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	seen, options := 0, metav1.ListOptions{Limit: 3, LabelSelector: "test=flows"}
	for {
		list, err := maps.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(list.Items)
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if seen != 7 {
		t.Errorf("pages have %d objects of 7", seen)
	}
	if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "test=flows"}); err != nil {
		t.Fatal(err)
	}
	if list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: "test=flows"}); err != nil || len(list.Items) != 0 {
		t.Errorf("after the deletion of all: %v, %v", list, err)
	}
}

// testWatch asks for what there is and for what comes, with a bookmark between.
func testWatch(t *testing.T, p *plane) {
	maps := p.client.CoreV1().ConfigMaps(ns)
	if _, err := maps.Create(t.Context(), configMap("watched"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	yes := true
	w, err := maps.Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=watched", SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began := false
	next := func(want watch.EventType) {
		t.Helper()
		e, ok := <-w.ResultChan()
		for began && ok && e.Type == watch.Bookmark && want != watch.Bookmark {
			e, ok = <-w.ResultChan() // how far the server is it may say at any time
		}
		if !ok || e.Type != want {
			t.Fatalf("an event %s is wanted: %+v", want, e)
		}
		began = began || want == watch.Bookmark
	}
	next(watch.Added)
	next(watch.Bookmark)
	if err := maps.Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Deleted)
}

// testPatches changes a Deployment in the four ways, and has two managers disagree.
func testPatches(t *testing.T, p *plane) {
	deployments := p.client.AppsV1().Deployments(ns)
	labels := map[string]string{"app": "a"}
	d, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Generation != 1 || *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("a new Deployment: %+v", d)
	}
	patch := func(how types.PatchType, text string, options metav1.PatchOptions) (*appsv1.Deployment, error) {
		return deployments.Patch(t.Context(), "a", how, []byte(text), options)
	}
	for _, c := range []struct {
		how  types.PatchType
		text string
	}{
		{types.JSONPatchType, `[{"op": "replace", "path": "/spec/replicas", "value": 2}]`},
		{types.MergePatchType, `{"spec": {"paused": true}}`},
		{types.StrategicMergePatchType, `{"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "c"}]}}}}`},
	} {
		if d, err = patch(c.how, c.text, metav1.PatchOptions{}); err != nil {
			t.Fatalf("%s: %v", c.how, err)
		}
	}
	if got := d.Spec.Template.Spec.Containers; d.Generation != 4 || *d.Spec.Replicas != 2 || !d.Spec.Paused || len(got) != 2 || got[1].Image != "c" {
		t.Errorf("after three patches: %+v", d)
	}
	apply := `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": %d}}`
	force := true
	if _, err := patch(types.ApplyPatchType, fmt.Sprintf(apply, 3), metav1.PatchOptions{FieldManager: "one", Force: &force}); err != nil {
		t.Fatal(err)
	}
	if _, err := patch(types.ApplyPatchType, fmt.Sprintf(apply, 4), metav1.PatchOptions{FieldManager: "two"}); !apierrors.IsConflict(err) {
		t.Errorf("two managers of one field: %v", err)
	}
	scale, err := deployments.GetScale(t.Context(), "a", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 3 || scale.Status.Selector != "app=a" {
		t.Errorf("scale: %+v, %v", scale, err)
	}
	d.Status.Replicas, d.Spec.Paused, d.ResourceVersion = 3, false, ""
	if d, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil || d.Status.Replicas != 3 || !d.Spec.Paused {
		t.Errorf("a status that is written changes %+v, %v", d, err)
	}
	// The controller of deployments has written meanwhile: what is sent is of no version.
	d.Spec.Selector.MatchLabels["app"], d.ResourceVersion = "b", ""
	if _, err := deployments.Update(t.Context(), d, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("another selector is taken: %v", err)
	}
	if err := deployments.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// testService has services given addresses and ports, and give them back.
func testService(t *testing.T, p *plane) {
	services := p.client.CoreV1().Services(ns)
	s, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip, port := s.Spec.ClusterIP, s.Spec.Ports[0].NodePort
	if ip == "" || port == 0 {
		t.Fatalf("a service is given nothing: %+v", s.Spec)
	}
	if _, err := p.client.NetworkingV1().IPAddresses().Get(t.Context(), ip, metav1.GetOptions{}); err != nil {
		t.Errorf("who has an address: %v", err)
	}
	again := func(spec corev1.ServiceSpec) error {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "x", Port: 81})
		_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	taken := corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "y", Port: 80, NodePort: port}}}
	if err := again(corev1.ServiceSpec{ClusterIP: ip}); !apierrors.IsInvalid(err) {
		t.Errorf("an address that is taken: %v", err)
	}
	if err := again(taken); !apierrors.IsInvalid(err) {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := services.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	taken.ClusterIP = ip
	if err := again(taken); err != nil {
		t.Errorf("what was given back: %v", err)
	}
	if err := services.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// testSubresources binds a pod, makes a token for it, evicts it, and lets its grace run.
func testSubresources(t *testing.T, p *plane) {
	ctx, pods := t.Context(), p.client.CoreV1().Pods(ns)
	if _, err := p.client.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Status.Phase != corev1.PodPending || pod.Status.QOSClass != corev1.PodQOSBestEffort || !strings.HasPrefix(pod.Name, "p-") {
		t.Errorf("a new pod: %+v", pod.Status)
	}
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := pods.Bind(ctx, bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Bind(ctx, bind, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a pod is bound twice: %v", err)
	}
	token, err := p.client.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}
	// The server's informers hear of the account a moment after its client does.
	until(t, "a token is good", func() error {
		r, err := p.client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && (!r.Status.Authenticated || r.Status.User.Username != "system:serviceaccount:default:default") {
			err = fmt.Errorf("%+v", r.Status)
		}
		return err
	})
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil || pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds != 30 {
		t.Errorf("a pod on a node is gone at once: %v", err)
	}
	zero := int64(0)
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(ctx, pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is deleted by force stays: %v", err)
	}
}

const definition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "boats.sea.example"}, "spec": {
	"group": "sea.example", "scope": "Namespaced", "names": {"plural": "boats", "singular": "boat", "kind": "Boat"}, "versions": [{
	"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
	"spec": {"type": "object", "properties": {"length": {"type": "integer", "minimum": 1, "default": 7}}}, "status": {"type": "object"}}}}}]}}`

// testCustom defines a resource and uses it.
func testCustom(t *testing.T, p *plane) {
	crd := object(t, definition)
	crds := p.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boats := p.dyn.Resource(schema.GroupVersionResource{Group: "sea.example", Version: "v1", Resource: "boats"}).Namespace(ns)
	boat := object(t, `{"apiVersion": "sea.example/v1", "kind": "Boat", "metadata": {"name": "a"}, "spec": {}}`)
	until(t, "a custom resource is served", func() error {
		_, err := boats.Create(t.Context(), boat.DeepCopy(), metav1.CreateOptions{})
		return err
	})
	got, err := boats.Get(t.Context(), "a", metav1.GetOptions{})
	if length, _, _ := unstructured.NestedInt64(got.Object, "spec", "length"); err != nil || length != 7 {
		t.Errorf("a default of a custom resource: %v, %v", got, err)
	}
	boat = object(t, `{"apiVersion": "sea.example/v1", "kind": "Boat", "metadata": {"name": "b"}, "spec": {"length": 0}}`)
	if _, err := boats.Create(t.Context(), boat, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("what a schema forbids: %v", err)
	}
	until(t, "a custom resource is described", func() error { return described(t, p, "apis/sea.example/v1") })
	if err := crds.Delete(t.Context(), "boats.sea.example", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	until(t, "a custom resource that is gone is not described", func() error {
		if described(t, p, "apis/sea.example/v1") == nil {
			return errors.New("it is")
		}
		return nil
	})
	// Each is of another server of the chain.
	for _, name := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1", "version"} {
		if err := described(t, p, name); err != nil {
			t.Errorf("%s is not described: %v", name, err)
		}
	}
}

// described says whether the index of OpenAPI's version 3 has a document, by its hash, and that is there.
func described(t *testing.T, p *plane, name string) error {
	t.Helper()
	all, err := p.client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		return err
	}
	one, ok := all[name]
	if !ok {
		return errors.New("the index does not have it")
	}
	if url := one.ServerRelativeURL(); !strings.Contains(url, "?hash=") || strings.HasSuffix(url, "=") {
		return fmt.Errorf("the index has %q", url)
	}
	text, err := one.Schema("application/json")
	if err == nil && !strings.Contains(string(text), `"openapi"`) {
		err = fmt.Errorf("it is %d bytes", len(text))
	}
	return err
}

// testEvents writes an event in one group and reads it in the other.
func testEvents(t *testing.T, p *plane) {
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: ns}, Reason: "Tried", Message: "a note", Type: "Normal",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p", APIVersion: "v1"},
	}
	if _, err := p.client.CoreV1().Events(ns).Create(t.Context(), e, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := p.client.EventsV1().Events(ns).Get(t.Context(), "e", metav1.GetOptions{})
	if err != nil || got.Note != "a note" || got.Regarding.Name != "p" {
		t.Errorf("the event in the other group: %+v, %v", got, err)
	}
	list, err := p.client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Tried"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("events selected by fields: %v, %v", list, err)
	}
}

// testCommands runs what an administrator runs beside the server.
func testCommands(t *testing.T, p *plane) {
	if out := p.run(t, "certs", "list"); !strings.Contains(out, "apiserver-kubelet") {
		t.Errorf("certs list: %s", out)
	}
	p.run(t, "certs", "renew")
	if out := p.run(t, "kubeconfig"); !strings.Contains(out, "client-key-data") {
		t.Errorf("kubeconfig: %s", out)
	}
	if out := p.run(t, "etcd", "status"); !strings.Contains(out, "revision") {
		t.Errorf("etcd status: %s", out)
	}
	p.run(t, "etcd", "defrag")
	if info, err := os.Stat(snapshot(t, p)); err != nil || info.Size() == 0 {
		t.Errorf("snapshot: %v", err)
	}
	id, _, ok := strings.Cut(strings.TrimSpace(p.run(t, "token", "create")), ".")
	if _, err := p.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), "bootstrap-token-"+id, metav1.GetOptions{}); !ok || err != nil {
		t.Errorf("token create: %v", err)
	}
}

func snapshot(t *testing.T, p *plane) string {
	path := filepath.Join(t.TempDir(), "snapshot.db")
	p.run(t, "etcd", "snapshot", path)
	return path
}

// testKilled kills the process in the midst of writes: what it has acknowledged is there after the next start, and the
// clients of before are still known.
func testKilled(t *testing.T, p *plane) {
	acknowledged := make(chan string, 10_000)
	go func() {
		defer close(acknowledged)
		for i := 0; ; i++ {
			name := fmt.Sprint("write-", i)
			if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
				return
			}
			acknowledged <- name
		}
	}()
	var names []string
	for name := range acknowledged {
		if names = append(names, name); len(names) == 100 {
			p.kill()
		}
	}
	next := start(t, p.dir)
	for _, name := range names {
		if _, err := next.client.CoreV1().ConfigMaps(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("an acknowledged write: %v", err)
		}
	}
	next.stop(t)
	if left, err := filepath.Glob(filepath.Join(p.dir, "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the run directory: %v, %v", left, err)
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}
