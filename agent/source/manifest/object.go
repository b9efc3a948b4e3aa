package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/control/api"
)

// AnnotationCredentials says of a Secret which credentials of the service its keys have as values:
// "password=db-password, ca.crt=ca".
const AnnotationCredentials = "berth.node/credentials"

// item makes an item of what a document holds.
func (r *Reader) item(d *decoded, from Place, seen time.Time) (Item, bool) {
	if d.object == nil {
		return static(d, r.Node, from.Origin, seen)
	}
	o, given := d.object, d.object.GetUID()
	strip(o)
	_, version := d.kind.Empty()
	// items of a list need not say it
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, string(d.kind)))
	if d.kind.Namespaced() && o.GetNamespace() == "" {
		o.SetNamespace("default")
	} else if !d.kind.Namespaced() && o.GetNamespace() != "" {
		d.warnings = append(d.warnings,
			d.at.say("metadata.namespace", "metadata.namespace is ignored: objects of this kind are in none"))
		o.SetNamespace("")
	}
	if c, ok := o.(*resourcev1.ResourceClaim); ok {
		if errs := r.identify(c, given, d); len(errs) > 0 {
			d.errors = append(d.errors, d.at.sayAll(errs)...)
			return Item{}, false
		}
	}
	if secret, ok := o.(*corev1.Secret); ok {
		if errs := r.secret(secret, from.Exposed); len(errs) > 0 {
			d.errors = append(d.errors, d.at.sayAll(errs)...)
			return Item{}, false
		}
	}
	raw, err := json.Marshal(o)
	if err != nil {
		d.errors = append(d.errors, d.at.say("", err.Error()))
		return Item{}, false
	}
	api.SetObjectDefaults(o)
	errs := api.ValidateObject(o, d.kind.Namespaced())
	errs = append(errs, unsupportedObject(o)...)
	if len(errs) > 0 {
		d.errors = append(d.errors, d.at.sayAll(errs)...)
		return Item{}, false
	}
	return Item{Ref: d.ref(), Object: o, Hash: contentHash(raw, ""), Raw: raw, Since: seen}, true
}

// ref names what a document holds, as far as it tells.
func (d *decoded) ref() object.Ref {
	if d.object != nil {
		return object.RefTo(d.kind, d.object.GetNamespace(), d.object.GetName())
	}
	return object.RefTo(d.kind, "", d.name)
}

// identify gives a ResourceClaim the UID that drivers know it by: its own, as in a cluster that it may come from, or
// one that is the same as long as its name and its spec are, which the API lets nobody change. Who it is reserved for
// is the node's to keep.
func (r *Reader) identify(o *resourcev1.ResourceClaim, given types.UID, d *decoded) field.ErrorList {
	if len(o.Status.ReservedFor) > 0 {
		d.warnings = append(d.warnings,
			d.at.say("status.reservedFor", "status.reservedFor is ignored: the node keeps which of its pods have the claim"))
		o.Status.ReservedFor = nil
	}
	o.UID = given
	if given != "" {
		return checkUID(given)
	}
	raw, err := json.Marshal([]any{o.Namespace, o.Name, o.Spec})
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	o.UID = types.UID(contentHash(raw, r.Node))
	return nil
}

// strip takes away what only an API server says of an object.
func strip(o object.Object) {
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	o.SetGeneration(0)
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	o.SetGenerateName("")
}

// secret fills in the credentials that a Secret names, and refuses values that others could have read.
func (r *Reader) secret(o *corev1.Secret, exposed error) field.ErrorList {
	if len(o.Data)+len(o.StringData) > 0 && exposed != nil {
		path := field.NewPath("data")
		if len(o.Data) == 0 {
			path = field.NewPath("stringData")
		}
		return field.ErrorList{field.Forbidden(path, exposed.Error())}
	}
	wanted := o.Annotations[AnnotationCredentials]
	if wanted == "" {
		return nil
	}
	at := field.NewPath("metadata", "annotations").Key(AnnotationCredentials)
	// Each value is read apart, so that a name cannot lead out of the directory.
	dir, err := r.credentials()
	if err != nil {
		return field.ErrorList{field.Forbidden(at, err.Error())}
	}
	defer dir.Close()
	var errs field.ErrorList
	for pair := range strings.SplitSeq(wanted, ",") {
		key, name, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || key == "" || name == "" {
			errs = append(errs, field.Invalid(at, pair, "must be KEY=CREDENTIAL, several of them separated by commas"))
			continue
		}
		value, err := fs.ReadFile(dir.FS(), name)
		if err != nil {
			errs = append(errs,
				field.Invalid(at, pair,
					fmt.Sprintf("read credential %q of this service: %v (see LoadCredential= in systemd.exec(5))", name, cause(err))))
			continue
		}
		if o.Data == nil {
			o.Data = map[string][]byte{}
		}
		o.Data[key] = value
	}
	return errs
}

// cause leaves the path out of an error.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

func (r *Reader) credentials() (*os.Root, error) {
	if r.Credentials == "" {
		return nil, errors.New("this service was given no credentials: $CREDENTIALS_DIRECTORY is not set (see " +
			"LoadCredential= in systemd.exec(5))")
	}
	dir, err := os.OpenRoot(r.Credentials)
	if err != nil {
		return nil, fmt.Errorf("open the service's credentials: %w", err)
	}
	return dir, nil
}

func unsupportedObject(o object.Object) field.ErrorList {
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		return desired.UnsupportedVolume(o)
	case *storagev1.CSIDriver:
		if len(o.Spec.TokenRequests) > 0 {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", "tokenRequests"),
				"only an API server makes tokens of service accounts, and there is none: the driver would wait for them in vain")}
		}
	case *corev1.PersistentVolumeClaim:
		return desired.UnsupportedSource(&o.Spec, o.Namespace, field.NewPath("spec"))
	}
	return nil
}
