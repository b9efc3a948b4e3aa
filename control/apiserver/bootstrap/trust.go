package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// trustName is the ConfigMap of kube-system in which extension API servers read how the cluster authenticates.
const trustName = "extension-apiserver-authentication"

// EnsureTrust publishes the authorities that clients and front proxies are verified with. What another server has
// published stays, unless it has retired: while an authority is replaced, both are trusted.
func (o Options) EnsureTrust(ctx context.Context, client kubernetes.Interface) error {
	if len(o.ClientCA) == 0 && len(o.RequestHeaderCA) == 0 {
		return nil
	}
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	err := again(func() error {
		have, err := configMaps.Get(ctx, trustName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		switch {
		case missing:
			have = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trustName}}
		case err != nil:
			return err
		}
		merged, err := o.trust(have.Data)
		if err != nil {
			return err
		}
		if !missing && maps.Equal(merged, have.Data) {
			return nil
		}
		have.Data = merged
		if missing {
			_, err = configMaps.Create(ctx, have, metav1.CreateOptions{FieldManager: fieldManager})
		} else {
			_, err = configMaps.Update(ctx, have, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", metav1.NamespaceSystem, trustName, err)
	}
	return nil
}

// trust is what the ConfigMap has to say, with what it says already.
func (o Options) trust(have map[string]string) (map[string]string, error) {
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	all["client-ca-file"] = bundle(have["client-ca-file"], o.ClientCA, o.Retired)
	if len(o.RequestHeaderCA) == 0 {
		return all, nil
	}
	all["requestheader-client-ca-file"] = bundle(have["requestheader-client-ca-file"], o.RequestHeaderCA, o.Retired)
	for name, values := range map[string][]string{
		"requestheader-username-headers":     {"X-Remote-User"},
		"requestheader-uid-headers":          {"X-Remote-Uid"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"requestheader-allowed-names":        o.RequestHeaderNames,
	} {
		var there []string
		// What cannot be read is nothing that an extension API server could have used.
		if json.Unmarshal([]byte(have[name]), &there) != nil {
			there = nil
		}
		for _, v := range values {
			if !slices.Contains(there, v) {
				there = append(there, v)
			}
		}
		if there == nil {
			there = []string{} // null is no list to those who read it
		}
		text, err := json.Marshal(there)
		if err != nil {
			return nil, err
		}
		all[name] = string(text)
	}
	return all, nil
}

// rootName is the ConfigMap of each namespace in which pods find by which authority the API is known, and rootKey where
// in it.
const (
	rootName = "kube-root-ca.crt"
	rootKey  = "ca.crt"
)

// EnsureRoots has pods trust what clients of the API are to trust, in those namespaces where they were told of it.
// Whoever makes the ConfigMaps has read the authorities when it was started.
func EnsureRoots(ctx context.Context, client kubernetes.Interface, trusted, retired []byte) error {
	all, err := client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + rootName})
	if err != nil {
		return fmt.Errorf("list ConfigMaps %s: %w", rootName, err)
	}
	var errs []error
	for _, have := range all.Items {
		want := bundle(have.Data[rootKey], trusted, retired)
		if want == have.Data[rootKey] || have.Name != rootName {
			continue
		}
		data := maps.Clone(have.Data)
		if data == nil {
			data = map[string]string{}
		}
		data[rootKey] = want
		have.Data = data
		_, err := client.CoreV1().ConfigMaps(have.Namespace).Update(ctx, &have, metav1.UpdateOptions{FieldManager: fieldManager})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("write ConfigMap %s/%s: %w", have.Namespace, rootName, err))
		}
	}
	return errors.Join(errs...)
}

// bundle adds certificates to those that are there, each once, and takes those away that have retired.
func bundle(have string, more, retired []byte) string {
	current := blocks(more)
	gone := slices.DeleteFunc(blocks(retired), func(b []byte) bool { return contains(current, b) })
	var all bytes.Buffer
	var seen [][]byte
	for _, b := range append(blocks([]byte(have)), current...) {
		if contains(seen, b) || contains(gone, b) {
			continue
		}
		seen = append(seen, b)
		all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b}))
	}
	return all.String()
}

// blocks are the certificates of a text.
func blocks(text []byte) [][]byte {
	var all [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			all = append(all, block.Bytes)
		}
	}
	return all
}

func contains(all [][]byte, one []byte) bool {
	return slices.ContainsFunc(all, func(b []byte) bool { return bytes.Equal(b, one) })
}
