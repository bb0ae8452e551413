import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's own REST catalog over its JDBC catalog, on loopback: port, then key=value properties. */
public class CatalogServer {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>();
    for (int i = 1; i < arguments.length; i++) {
      String[] parts = arguments[i].split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.initialize("rest", properties);

    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
