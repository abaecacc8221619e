package lab;

import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.jar.Manifest;

/**
 * What a driver says of itself: versions, classes as pairs of a name and how it is reached, and every option that is not
 * the default with its reason.
 */
record Description(String version, List<String> classes, List<String> options) {
    /** A version that the project file names, from the archive that was built with it. */
    static String built(String entry) {
        try {
            for (var urls = Description.class.getClassLoader().getResources("META-INF/MANIFEST.MF");
                    urls.hasMoreElements(); ) {
                try (InputStream file = urls.nextElement().openStream()) {
                    String value = new Manifest(file).getMainAttributes().getValue(entry);
                    if (value != null) {
                        return value;
                    }
                }
            }
        } catch (IOException error) {
            throw new IllegalStateException("the archive of the drivers cannot be read", error);
        }
        throw new IllegalStateException("the archive of the drivers does not name its " + entry);
    }
}
